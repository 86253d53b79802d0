"""Right versions, which replace the wrong part of a project in each offered test.

A version is the smallest that equals plain autograd where the project does not. It is the kit's right split for torch's
functions, a loop over micro-batches for a schedule, and the layers alone for a pipe. The test passes with it, so it can
pass, and it requires no more than plain autograd does.
"""

from __future__ import annotations

import contextlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from gradconform.reference import install, split

RightOf = Callable[[], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def replaced(*places: tuple[str, object]) -> Iterator[None]:
    """Replace attributes of modules and classes inside the block."""
    with contextlib.ExitStack() as stack:
        for place, value in places:
            stack.enter_context(mock.patch(place, value))
        yield


def right_of(project: str, name: str) -> contextlib.AbstractContextManager[None]:
    """Return the context that installs the right version for one offered test."""
    return {**dict.fromkeys([name], PROJECTS[project]), **OTHERS.get(project, {})}[name]()


# torch: its functions


@contextlib.contextmanager
def torchs_functions() -> Iterator[None]:
    """Replace the functions by the right split, for stages too."""
    install()
    names = ("stage_backward", "stage_backward_input", "stage_backward_weight")
    with replaced(*((f"torch.distributed.pipelining._backward.{name}", getattr(split, name)) for name in names)):
        yield


@contextlib.contextmanager
def graphs_that_are_kept() -> Iterator[None]:
    """Let compiled code keep its saved tensors if a graph is walked again."""
    with torchs_functions(), torch._functorch.config.patch(donated_buffer=False):
        yield


# torch: its runtime


class PlainSchedule:
    """Runs the stages of this process in turn, and divides a step's gradients by its micro-batches."""

    def __init__(self, stages: Any, n_microbatches: int, loss_fn: Any, *, scale_grads: bool = True) -> None:
        self.modules = [stage.submod for stage in (stages if isinstance(stages, list) else [stages])]
        self.n, self.loss_fn, self.share = n_microbatches, loss_fn, n_microbatches if scale_grads else 1

    def losses(self, x: torch.Tensor, target: torch.Tensor) -> Iterator[torch.Tensor]:
        for outputs, of_target in zip(x.chunk(self.n), target.chunk(self.n), strict=True):
            for module in self.modules:
                outputs = module(outputs)  # noqa: PLW2901 (from stage to stage)
            yield self.loss_fn(outputs, of_target)

    def step(self, x: torch.Tensor, *, target: torch.Tensor, return_outputs: bool = True) -> None:
        del return_outputs
        for loss in self.losses(x, target):
            (loss / self.share).backward()

    def eval(self, x: torch.Tensor, *, target: torch.Tensor, losses: list[torch.Tensor]) -> None:
        with torch.no_grad():
            losses.extend(self.losses(x, target))


def plain_schedules() -> contextlib.AbstractContextManager[None]:
    """Replace the schedules that the tests name by the plain one."""
    names = ("GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble")
    return replaced(*((f"torch.distributed.pipelining.Schedule{name}", PlainSchedule) for name in names))


class Unwrapped(nn.Module):
    """One replica without DistributedDataParallel."""

    def __init__(self, module: nn.Module, **_: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def one_replica() -> contextlib.AbstractContextManager[None]:
    """Do not wrap layers."""
    return replaced(("torch.nn.parallel.DistributedDataParallel", Unwrapped))


def every_parameter_used() -> contextlib.AbstractContextManager[None]:
    """Add zero times every parameter to the output, so that each has a gradient."""
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 (where it is replaced)

    def with_all(module: nn.Module, args: Any, output: Any) -> Any:
        del args
        return output + 0.0 * sum(one.sum() for one in module.parameters())

    def shard(module: nn.Module, **options: Any) -> None:
        fully_shard(module, **options)
        module.register_forward_hook(with_all, prepend=True)  # before the parameters are sharded again

    return replaced(("torch.distributed.fsdp.fully_shard", shard))


def frozen_as_before() -> contextlib.AbstractContextManager[None]:
    """Freeze the parameters that were frozen before the layers were parallelized."""
    from torch.distributed.tensor.parallel import parallelize_module  # noqa: PLC0415 (where it is replaced)

    def parallelize(module: nn.Module, mesh: Any, plan: Any) -> None:
        trained = {name: one.requires_grad for name, one in module.named_parameters()}
        parallelize_module(module, mesh, plan)
        for name, one in module.named_parameters():
            one.requires_grad_(trained[name])

    return replaced(("torch.distributed.tensor.parallel.parallelize_module", parallelize))


def stages_that_let_go() -> contextlib.AbstractContextManager[None]:
    """Free outputs after I, and input gradients after W."""
    from torch.distributed.pipelining import PipelineStage  # noqa: PLC0415 (where it is replaced)

    class Stage(PipelineStage):
        def backward_one_chunk(self, mb: int, **options: Any) -> None:
            super().backward_one_chunk(mb, **options)
            inputs, groups, *_ = self.backward_state[mb]
            self.backward_state[mb] = inputs, groups, None, None
            for infos in self.args_recv_info.values():
                infos[0].buffer.grad = None

    return replaced(("torch.distributed.pipelining.PipelineStage", Stage))


def stages_fed_leaves_of_their_own() -> contextlib.AbstractContextManager[None]:
    """Give each micro-batch its received inputs in new tensors."""
    from torch.distributed.pipelining import PipelineStage  # noqa: PLC0415 (where it is replaced)

    class Stage(PipelineStage):
        def _retrieve_recv_activations(self, mb: int) -> tuple[torch.Tensor, ...]:
            received = super()._retrieve_recv_activations(mb)
            return tuple(one.detach().requires_grad_(one.requires_grad) for one in received)

    return replaced(("torch.distributed.pipelining.PipelineStage", Stage))


def stages_that_compute_what_is_needed() -> contextlib.AbstractContextManager[None]:
    """Let a received input require a gradient only if its sender's does."""
    from torch.distributed.pipelining import PipelineStage  # noqa: PLC0415 (where it is replaced)

    class Stage(PipelineStage):
        def set_local_fwd_input(self, outputs: Any, mb: int) -> None:
            super().set_local_fwd_input(outputs, mb)
            self.needed = {mb: [one.requires_grad for one in outputs]}

        def _retrieve_recv_activations(self, mb: int) -> tuple[torch.Tensor, ...]:
            received = super()._retrieve_recv_activations(mb)
            return tuple(one.detach().requires_grad_(need) for one, need in zip(received, self.needed[mb], strict=True))

        def backward_one_chunk(self, mb: int, **options: Any) -> None:
            super().backward_one_chunk(mb, **options)
            grads = zip(self.bwd_cache[mb], self.needed[mb], strict=True)
            self.bwd_cache[mb] = tuple(grad if need else None for grad, need in grads)

    return replaced(("torch.distributed.pipelining.PipelineStage", Stage))


def strict_schedule_text() -> contextlib.AbstractContextManager[None]:
    """Read a cell to its end, and refuse a repeated action."""
    from torch.distributed.pipelining import schedules  # noqa: PLC0415 (where it is replaced)

    read, validate = schedules._Action.from_str, schedules._validate_schedule

    def from_str(cell: str) -> Any:
        if not re.fullmatch(r"\d+[A-Z_]+\d*", cell):
            msg = f"{cell!r} is no action"
            raise RuntimeError(msg)
        return read(cell)

    def validated(rows: Any, *args: Any) -> Any:
        for row in rows.values():
            if len(set(row)) < len(row):
                msg = "an action occurs twice"
                raise AssertionError(msg)
        return validate(rows, *args)

    home = "torch.distributed.pipelining.schedules"
    return replaced((f"{home}._Action.from_str", staticmethod(from_str)), (f"{home}._validate_schedule", validated))


# torch: its kernels on the CPU


def contiguous_arguments(place: str) -> RightOf:
    """Make the arguments of a function contiguous before it is called."""

    def right() -> contextlib.AbstractContextManager[None]:
        function = pkgutil.resolve_name(place)

        def called(*args: Any, **kwargs: Any) -> Any:
            return function(*pytree.tree_map(_contiguous, args), **pytree.tree_map(_contiguous, kwargs))

        return replaced((place, called))

    return right


@contextlib.contextmanager
def contiguous_medians() -> Iterator[None]:
    """Make tensors contiguous before their median is taken."""
    with contiguous_arguments("torch.median")(), contiguous_arguments("torch.nanmedian")():
        yield


def contiguous_indices() -> contextlib.AbstractContextManager[None]:
    """Make the arguments of the three backwards of poolings contiguous."""
    names = ("adaptive_max_pool3d", "fractional_max_pool2d", "fractional_max_pool3d")
    stack = contextlib.ExitStack()
    for name in names:
        stack.enter_context(contiguous_arguments(f"torch.ops.aten.{name}_backward")())
    return stack


def _contiguous(leaf: Any) -> Any:
    return leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf


# other projects


def d9ds_functions() -> contextlib.AbstractContextManager[None]:
    """Replace the functions by the right split, and refuse gradients that do not mirror the outputs."""
    from d9d.pipelining.infra.stage import computations, splitgrad  # noqa: PLC0415 (in one process alone)

    def full(outputs: Any, output_grads: Any, inputs: Any) -> list[Any]:
        return list(split.stage_backward(outputs, output_grads, inputs))

    def backward_input(outputs: Any, output_grads: Any, inputs: Any, weights: Any) -> Any:
        found, context = split.stage_backward_input(outputs, output_grads, inputs, weights)
        return splitgrad.BackwardInputResult(list(found), context, [])

    leaves = computations.BackwardComputeHandler._seed_leaves

    def mirrored(seed: Any) -> Any:
        if pytree.tree_structure(seed.outputs) != pytree.tree_structure(seed.output_grads):
            msg = "gradients of another structure than the outputs"
            raise ValueError(msg)
        return leaves(seed)

    functions = {
        "stage_backward_full": full,
        "stage_backward_input": backward_input,
        "stage_backward_weight": split.stage_backward_weight,
    }
    home = "d9d.pipelining.infra.stage"
    return replaced(
        *((f"{home}.{part}.{name}", one) for part in ("splitgrad", "computations") for name, one in functions.items()),
        (f"{home}.computations.BackwardComputeHandler._seed_leaves", staticmethod(mirrored)),
    )


def pippys_function() -> contextlib.AbstractContextManager[None]:
    """Replace the function by the right full backward."""

    def stage_backward(outputs: Any, grads: Any, inputs: Any, *_: Any) -> tuple[Any, None]:
        try:
            return split.stage_backward(outputs, grads, inputs), None
        except ValueError as error:
            raise RuntimeError(str(error)) from error

    return replaced(("pippy.backward.stage_backward", stage_backward))


def no_pipe(place: str) -> RightOf:
    """Run the layers without the pipe."""
    return lambda: replaced((place, lambda layers, **_: layers))


def megatrons_functions() -> contextlib.AbstractContextManager[None]:
    """Start at all outputs, and free none that is a leaf."""
    from megatron.core.pipeline_parallel import schedules  # noqa: PLC0415 (in one process alone)

    deallocate = schedules.deallocate_output_tensor

    def backward_step(inputs: Any, outputs: Any, grads: Any, *_: Any) -> Any:
        return split.stage_backward(outputs, grads, inputs)

    def deallocate_output_tensor(out: torch.Tensor, **options: Any) -> None:
        if not out.is_leaf:
            deallocate(out, **options)

    home = "megatron.core.pipeline_parallel.schedules"
    return replaced(
        (f"{home}.backward_step", backward_step), (f"{home}.deallocate_output_tensor", deallocate_output_tensor)
    )


def linear_of_torch() -> contextlib.AbstractContextManager[None]:
    """Multiply as torch does, whether the weight is frozen or not."""
    place = "megatron.core.tensor_parallel.layers.linear_with_frozen_weight"
    return replaced((place, lambda x, weight, bias, *_: nn.functional.linear(x, weight, bias)))


def finished_base_wrapper() -> contextlib.AbstractContextManager[None]:
    """Accept what the schedules pass, where nothing is left to finish."""
    home = "megatron.core.distributed.data_parallel_base._BaseDataParallel"
    return replaced((f"{home}.finish_grad_sync", lambda *_, **__: None))


def deepspeeds_engine() -> contextlib.AbstractContextManager[None]:
    """Run one backward over the outputs that require a gradient, and free them in any case."""
    from deepspeed.runtime import engine as engines  # noqa: PLC0415 (in one process alone)

    broadcast = engines.DeepSpeedEngine._broadcast_model

    def backward_pass(engine: Any, mb: int) -> None:
        outputs, engine.pipe_buffers["outputs"][mb] = engine.pipe_buffers["outputs"][mb], None
        engine._running_engine_backward = True  # as the engine does for its own hooks
        if engine.is_last_stage():
            engine.loss.backward()
            return
        outputs, grads = (one if isinstance(one, tuple) else (one,) for one in (outputs, engine.grad_layer))
        needing = [(one, grad) for one, grad in zip(outputs, grads, strict=True) if one.requires_grad]
        if any(grad is None for _, grad in needing):
            msg = "an output has no gradient"
            raise RuntimeError(msg)
        torch.autograd.backward(*map(list, zip(*needing, strict=True)))

    def contiguous(engine: Any) -> None:
        odd = {one: one.data for one in engine.module.parameters() if not (one.dim() and one.is_contiguous())}
        for one, values in odd.items():
            one.data = values.reshape(-1)
        broadcast(engine)
        for one, values in odd.items():
            one.data = values.copy_(one.data.reshape(values.shape))

    return replaced(
        ("deepspeed.runtime.pipe.engine.PipelineEngine._exec_backward_pass", backward_pass),
        ("deepspeed.runtime.engine.DeepSpeedEngine._broadcast_model", contiguous),
    )


def scattered_into_a_copy() -> contextlib.AbstractContextManager[None]:
    """Write into a copy of the input, by operations whose backward is right."""

    def as_strided_scatter(kept: Tensor, written: Tensor, size: Any, stride: Any, storage_offset: int = 0) -> Tensor:
        result = kept.clone()
        result.as_strided(size, stride, storage_offset).copy_(written)
        return result

    return replaced(("torch.as_strided_scatter", as_strided_scatter))


def norm_of_all_stages() -> contextlib.AbstractContextManager[None]:
    """Count the gradients of every stage."""
    from deepspeed.runtime import utils  # noqa: PLC0415 (in one process alone)

    clip = utils.clip_grad_norm_

    def clip_grad_norm_(parameters: Any, max_norm: float, mpu: Any) -> Any:
        first = SimpleNamespace(
            get_model_parallel_rank=lambda: 0, get_model_parallel_group=mpu.get_model_parallel_group
        )
        return clip(parameters, max_norm, mpu=first)

    return replaced(("deepspeed.runtime.utils.clip_grad_norm_", clip_grad_norm_))


def norm_of_all_experts() -> contextlib.AbstractContextManager[None]:
    """Sum squares over the ranks that divide experts."""

    def clip_grad_norm_(parameters: Any, max_norm: float, **_: Any) -> Any:
        square = sum(one.grad.square().sum() for one in parameters)
        torch.distributed.all_reduce(square)
        for one in parameters:
            one.grad *= (max_norm / square.sqrt()).clamp(max=1.0)
        return square.sqrt()

    return replaced(("deepspeed.runtime.utils.clip_grad_norm_", clip_grad_norm_))


def forward_without_assertion() -> contextlib.AbstractContextManager[None]:
    """Run a micro-batch forward for its loss alone."""
    import gradconform.plugins.runtimes.nanotron_layers  # noqa: F401, PLC0415 (it imports the project in order)

    def forward(engine: Any, context: Any, state: Any, micro_batch: Any, model: Any) -> Any:
        del state
        with context:
            return {"loss": model(**micro_batch)["loss"] / engine.nb_microbatches}

    return replaced(("nanotron.parallel.pipeline_parallel.engine.PipelineEngine.forward", forward))


def on_the_cpu() -> contextlib.AbstractContextManager[None]:
    """Run on the CPU instead of the device."""
    return replaced(("torch_xla.device", lambda: torch.device("cpu")))


def made_on_the_cpu() -> contextlib.AbstractContextManager[None]:
    """Make tensors of a backend in Python on the CPU, whose guard is in C++."""
    return replaced(("torch._C._acc.create_empty_tensor", lambda shape, dtype: torch.empty(shape, dtype=dtype)))


#: What is right for most tests of a project, and for others.
PROJECTS: dict[str, RightOf] = {
    "d9d": d9ds_functions,
    "deepspeed": deepspeeds_engine,
    "fairscale": no_pipe("fairscale.nn.Pipe"),
    "megatron-core": megatrons_functions,
    "nanotron": forward_without_assertion,
    "torch": torchs_functions,
    "torch_xla": on_the_cpu,
    "torchgpipe": no_pipe("torchgpipe.GPipe"),
    "torchpippy": pippys_function,
}
OTHERS: dict[str, dict[str, RightOf]] = {
    "deepspeed": {
        "clipped_by_norm_of_first_stage": norm_of_all_stages,
        "norm_averaged_over_experts": norm_of_all_experts,
    },
    "megatron-core": {
        "bias_beside_frozen_weight": linear_of_torch,
        "fully_sharded_grads_not_finalized": finished_base_wrapper,
    },
    "torch": {
        "accumulated_grads_scaled_again": plain_schedules,
        "as_strided_scatter_gradient_of_overwritten": scattered_into_a_copy,
        "batch_norm_counts_inference": plain_schedules,
        "batch_norm_weight_read_as_contiguous": contiguous_arguments("torch.nn.functional.batch_norm"),
        "ctc_targets_read_as_contiguous": contiguous_arguments("torch.nn.functional.ctc_loss"),
        "group_norm_weight_read_as_contiguous": contiguous_arguments("torch.native_group_norm"),
        "layer_norm_mean_read_as_contiguous": contiguous_arguments("torch.ops.aten.native_layer_norm_backward"),
        "median_of_expanded_reads_past_it": contiguous_medians,
        "mkldnn_rnn_layer_input_read_as_contiguous": contiguous_arguments("torch.mkldnn_rnn_layer"),
        "pooling_indices_read_as_contiguous": contiguous_indices,
        "python_backend_error_ends_process": made_on_the_cpu,
        "compiled_stage_split": graphs_that_are_kept,
        "ddp_forgets_tensor_parallel_layers": one_replica,
        "ddp_reducer_left_armed": plain_schedules,
        "ddp_trains_frozen_tensor_parallel_layers": one_replica,
        "duplicate_action": strict_schedule_text,
        "eval_of_v_schedule": plain_schedules,
        "evaluation_clears_sharded_grads": plain_schedules,
        "evaluation_divides_grads": plain_schedules,
        "frozen_first_stage": plain_schedules,
        "hooks_of_received_inputs_pile_up": stages_fed_leaves_of_their_own,
        "last_stage_detached_before_w": plain_schedules,
        "last_stage_output_frozen": plain_schedules,
        "need_of_gradient_kept": stages_that_compute_what_is_needed,
        "outputs_kept_between_i_and_w": stages_that_let_go,
        "received_grads_kept": stages_that_let_go,
        "reentrant_checkpoint_refused": plain_schedules,
        "sequence_parallel_trains_frozen_norm": frozen_as_before,
        "text_behind_an_action": strict_schedule_text,
        "unreduced_grads_of_zero_bubble": plain_schedules,
        "unused_parameter_breaks_fully_shard": every_parameter_used,
        "weight_grads_dropped_when_resharded": plain_schedules,
    },
}
