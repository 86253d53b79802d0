"""torch's ``PipelineStage``, driven as its own schedules drive it: the registered target ``torch-stage``.

A stage of a trial is the middle one of three, or the last one if backward starts at a loss. The first stage of a chain
is the pipeline's first. Activations and gradients are passed as between two stages of one rank. If there is no default
process group, one of a single gloo process is created and stays until Python exits.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from gradconform.adapter import Capabilities, StageSpec, Tree
from gradconform.reference.deferred_linear import DeferredLinear, WeightGradStore
from gradconform.target.layer_swap import swap
from gradconform.target.session import StageSession
from gradconform.torch_releases import pipelining
from gradconform.torch_releases.names import require

from .full_only import flat, received

require(*pipelining.FOR_STAGES)

_STAGES = 3


class TorchStageSession(StageSession):
    """A session on one ``PipelineStage``, which stores the micro-batches in flight in its caches."""

    _stage: Any  # torch's, in place of the module in it

    def __init__(
        self, stage: nn.Module, spec: StageSpec, dw_builder: Callable[[], Callable[..., None]] | None = None
    ) -> None:
        """Prepare the stage for ``spec.n_microbatches``, from metadata alone."""
        first, last = spec.is_first, spec.is_last
        index, count = (0, 1) if first and last else (0 if first else _STAGES - 1 if last else 1, _STAGES)
        super().__init__(stage, spec)
        self._stage = PipelineStage(
            stage,
            index,
            count,
            next((arg.device for arg in spec.example_args if isinstance(arg, Tensor)), torch.device("cpu")),
            input_args=spec.example_args,
            output_args=flat(spec.example_outputs),
            group=group_of_one(),
            dw_builder=dw_builder,
        )
        pipelining.make_ready(self._stage, spec.n_microbatches, spec.example_args)

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Run one chunk forward; its arguments are received from the previous stage, unless this is the first."""
        if not self._stage.is_first:
            self._stage.set_local_fwd_input(received(args), mb)
        forward = self._stage.forward_one_chunk
        outputs = forward(mb, args, **pipelining.taken(forward, save_forward_output=False))
        if self._spec.loss_fn is not None:
            self._forwards[mb] = (), self._spec.loss_fn(outputs, target)
        return outputs

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run the full backward of one chunk."""
        return self._backward(mb, output_grads, full=True)

    def backward_input(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run the first half of one chunk's backward; the first stage of a pipeline does all of it in the second."""
        return self._backward(mb, output_grads, full=False)

    def _backward(self, mb: int, output_grads: Tree, *, full: bool) -> tuple[Tensor | None, ...]:
        if not self._stage.is_last:
            self._stage.set_local_bwd_input(flat(output_grads), mb)
        _, loss = self._forwards.pop(mb, ((), None))
        self._stage.backward_one_chunk(mb, loss=loss, full_backward=full)
        grads = pipelining.CACHES["backward cache"].find(self._stage).pop(mb)
        return grads or (None,) * len(self._spec.example_args)

    def backward_weight(self, mb: int) -> None:
        """Run the second half of one chunk's backward."""
        self._stage.backward_weight_one_chunk(mb)

    def finish(self) -> None:
        """Clear the stage as a schedule does between two steps."""
        self._stage.clear_runtime_states()


#: Features that a ``PipelineStage`` refuses, or documents as different from plain autograd.
CLAIMS: dict[str, Any] = {
    "nested_output": False,  # "All stage args must be tensors": outputs are a tensor or a tuple of tensors
    "nontensor_input": False,  # refused with the same words; such arguments are kwargs
    "parameter_input": False,  # received inputs are detached, so none is a parameter
    "none_output_grad": True,
    "none_as_zeros": True,  # set_local_bwd_input zeroes the receive buffer of the gradient
    "called_without_grad": False,  # I refuses it: it makes views of the inputs to find their nodes
    "first_stage_input_grads": False,  # its I is left to W: "we will perform the weight update … in" that
}


class TorchStageAdapter:
    """The adapter of ``PipelineStage``: it claims plain autograd's features for stages with only tensors."""

    name = "torch-stage"
    drives = "torch.distributed.pipelining.stage"
    capabilities = Capabilities(**CLAIMS)

    def open(self, stage: nn.Module, spec: StageSpec) -> TorchStageSession:
        """Return a session on ``stage``."""
        return TorchStageSession(stage, spec)


def group_of_one() -> dist.ProcessGroup | None:
    """Return a process group of only this process; None if the default group is one."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined] # in its __all__ by a star import
        atexit.register(_leave)
    if dist.get_world_size() == 1:
        return None
    group: dist.ProcessGroup = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    return group


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class TorchDwBuilderSession(TorchStageSession):
    """A session on a ``PipelineStage`` with replaced layers."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Replace the Linears of ``stage``; names stay."""
        self._store = WeightGradStore()
        self._swap = swap(stage, nn.Linear, DeferredLinear, store=self._store)
        super().__init__(stage, spec, dw_builder=self._store.take)

    def _backward(self, mb: int, output_grads: Tree, *, full: bool) -> tuple[Tensor | None, ...]:
        try:
            return super()._backward(mb, output_grads, full=full)
        except Exception:
            self._store.take()  # gradients that a failed backward left
            raise

    def close(self) -> None:
        """Restore the stage's layers."""
        super().close()
        self._swap.undo()


class TorchDwBuilderAdapter:
    """The adapter of ``dw_builder``, whose I computes all gradients except those of deferred weights."""

    name = "torch-dw-builder"
    drives = "torch.distributed.pipelining.stage"
    capabilities = Capabilities(
        **CLAIMS,
        input_pass_touches_params=True,  # biases, norms, embeddings: I is a full backward
        hooks="early",  # theirs fire in I; those of the weights left behind never do
        autocast=False,  # the function of the swapped layers knows nothing of it
        changed_in_flight=False,  # the swapped layers read their weights in the backward
        shared_module=False,  # two sessions would swap the layers of one module twice
    )

    def open(self, stage: nn.Module, spec: StageSpec) -> TorchDwBuilderSession:
        """Return a session on ``stage``."""
        return TorchDwBuilderSession(stage, spec)
