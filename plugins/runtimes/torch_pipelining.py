"""torch's own runtime: ``PipelineStage``, its schedules, and the wrappers that torch documents for them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from gradconform.pipeline.torch_runtime import make_stages
from gradconform.runtime import Batch, Kept, ModuleSession, StepSpec, balance_experts, scale_auxiliary
from gradconform.torch_releases import pipelining
from gradconform.torch_releases.distributed_tensors import IGNORE

from .torch_experts_and_context import divide, share_sequences
from .torch_tensor_parallel import Laid, laid_out, share, total_square, whole


class TorchRuntime:
    """The runtime of torch: wraps each stage, then runs torch's schedule."""

    name = "torch"
    #: torch's runtime does not reduce a weight that two ranks share, and its stages take chunks of one size.
    #: The last backward of every step reduces: a stage sets this on its wrapper.
    claims: Mapping[str, str] = {
        "rows": "even",
        "weights": "all frozen-stage frozen-layers",
        "steps": "one-step accumulated zeroed evaluated evaluated-first clipped",
        # The last stage shares the embedding of the first, a weight on two ranks.
        "predictions": "one-prediction",
    }

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> TorchSession:
        """Wrap the stages of this rank and make the schedule."""
        divided = spec.tensor_ranks > 1 or "replicas" in spec.experts.values()
        return (_SharedSession if divided else TorchSession)(stages, spec)


class TorchSession(ModuleSession):
    """One rank of a torch pipeline."""

    def __init__(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Create the mesh, wrap the stages and create the schedule, on all ranks at the same time."""
        pipelining.wait_for_all(dist.get_default_backend_for_device(spec.device))
        self.mesh = _mesh(spec)
        self.replicas = self.mesh["replicate", "shard"] if spec.data_parallel == "hsdp" else self.mesh["replicas"]
        if spec.context != "whole":
            share_sequences(stages, self.replicas, spec.attentions, spec.context)
        super().__init__({index: self._wrapped(index, stage, spec) for index, stage in stages.items()}, spec)
        # Wrappers take the mean over replicas: where a sum is wanted, every loss counts as many times.
        summed = spec.reduction != "mean" or spec.context != "whole"
        self._times = float(spec.replicas) if summed else 1.0
        self._factor = self._times
        scale_auxiliary(self.modules.values(), self._times)  # as the loss
        pipeline = self.mesh["pipeline"].get_group()
        self.stages = make_stages(self.modules, spec.stages, spec.device, pipeline, spec.note)
        pipelining.connect(self.stages, dist.get_backend(pipeline))
        found = pipelining.RUNTIME.find() if spec.schedule == "CSV" else pipelining.SCHEDULE_CLASS.find()(spec.schedule)
        options = {"loss_fn": self._loss, **pipelining.scaling(found, scaled=spec.reduction == "mean")}
        single = issubclass(found, pipelining.SINGLE.find())
        self.schedule: Any = found(self.stages[0] if single else self.stages, spec.microbatches, **options)
        if spec.schedule == "CSV":
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "schedule.csv")
                file.write_text("".join(f"{','.join(row)}\n" for row in spec.order), encoding="utf-8")
                pipelining.LOAD_CSV.find(self.schedule)(str(file))

    def _wrapped(self, index: int, stage: nn.Module, spec: StepSpec, **options: Any) -> nn.Module:  # noqa: ARG002 (for those below)
        """Return a stage in its wrapper; ``options`` are those of ``fully_shard`` alone."""
        if spec.data_parallel == "none":
            return stage
        if spec.data_parallel == "ddp":
            return _in_ddp(stage, spec, process_group=self.replicas.get_group())
        policy = MixedPrecisionPolicy()
        if spec.precision == "mixed":
            policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=spec.dtype)
        reshard = spec.data_parallel != "fsdp-kept"
        fully_shard(stage, mesh=self.replicas, reshard_after_forward=reshard, mp_policy=policy, **options)
        return stage

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        if self.spec.context != "whole" and self.spec.reduction == "mean":
            return self.spec.loss(output, target) * self._factor / self._total(self.spec.counts(target).sum())
        return self.spec.loss(output, target) * self._factor

    def _total(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over replicas."""
        total = value.clone()
        for group in self.replicas.get_all_groups():
            dist.all_reduce(total, group=group)
        return total

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule."""
        return self._run(self.schedule.step, batch)

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule without its backward."""
        return self._run(pipelining.EVALUATION.find(self.schedule), batch)

    def _run(self, run: Callable[..., Any], batch: Batch) -> list[Tensor] | None:
        spec = self.spec
        if spec.reduction == "tokens":
            tokens = torch.stack([spec.counts(batch.target).sum(), torch.tensor(batch.positions(), device=spec.device)])
            tokens = self._total(tokens)
            self._factor = self._times / float(tokens[0])
            scale_auxiliary(self.modules.values(), self._times / float(tokens[1]))
        losses: list[Tensor] = []
        # Around the whole schedule, as in torchtitan: only the schedule knows where a forward begins.
        with torch.autocast(spec.device.type, torch.bfloat16, enabled=spec.precision == "autocast"):
            run(
                *((batch.x,) if spec.is_first else ()),
                target=batch.target if spec.is_last else None,
                losses=losses if spec.is_last else None,
                **batch.kwargs,
            )
        if spec.context != "whole":
            losses = [self._total(loss.detach()) for loss in losses]
        return [loss.detach() / self._factor for loss in losses] if spec.is_last else None

    def update(self, lr: float) -> None:
        """Make a step of SGD, and update the biases of routers."""
        super().update(lr)
        if self.spec.experts:
            balance_experts(self.modules.values(), self._total)

    def clip(self, max_norm: float) -> float:
        """Compute the norm over shards, then over the pipeline's ranks, and clip by it, as torchtitan does."""
        parameters = [one for _, one in self.named("named_parameters") if one.grad is not None]
        squared = whole(get_total_norm([one.grad for one in parameters if one.grad is not None])).square()
        dist.all_reduce(squared, group=self.mesh["pipeline"].get_group())
        norm = squared.sqrt()
        clip_grads_with_norm_(parameters, max_norm, norm)
        return float(norm)

    def held(self) -> dict[str, int]:
        """Return the sizes of the stages' caches, which a step clears at its start."""
        return {
            f"the {name} of stage {stage.stage_index}": len(cache.find(stage))
            for stage in self.stages
            for name, cache in pipelining.CACHES.items()
            if cache.there(stage)
        }

    def close(self) -> None:
        """Free the stages; the mesh is kept for the next run."""
        self.stages.clear()


class _SharedSession(TorchSession):
    """One rank of a pipeline whose layers or experts are divided over ranks."""

    def __init__(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Share the layers first; ``laid`` are the parameters that wrappers get as plain tensors."""
        self.laid: dict[str, Laid] = {}
        super().__init__(stages, spec)
        if spec.data_parallel == "ddp":
            self.optimized = list(super().named("named_parameters"))

    def _wrapped(self, index: int, stage: nn.Module, spec: StepSpec, **options: Any) -> nn.Module:
        if spec.tensor_ranks > 1:
            share(stage, index, self.mesh["tensor"], spec.shared)
        if "tensor" in spec.experts.values():
            # fully_shard divides distributed tensors again; DistributedDataParallel takes no part in the division.
            plain = not spec.data_parallel.startswith("fsdp")
            divided = dict(divide(stage, index, spec.experts, self.mesh["tensor"], plain=plain))
            self.laid |= {f"{index}.{name}": laid for name, laid in divided.items() if plain}
        if "replicas" in spec.experts.values():
            options |= {"ignored_params": self._divided_over_replicas(index, stage, spec)}
        if spec.data_parallel == "ddp":
            self.laid |= {f"{index}.{name}": laid for name, laid in laid_out(stage)}
            return _in_ddp(stage, spec, device_mesh=self.replicas)
        return super()._wrapped(index, stage, spec, **options)

    def _divided_over_replicas(self, index: int, stage: nn.Module, spec: StepSpec) -> set[nn.Parameter]:
        """Divide experts over replicas; return their parameters, which no wrapper must average.

        Each gets the gradient of the tokens of all replicas: the mean over these is that sum divided by their number.
        """
        mesh = _mesh(replace(spec, data_parallel="fsdp"))["replicas"]
        divided = dict(divide(stage, index, spec.experts, mesh, plain=True))
        parameters = {stage.get_parameter(name) for name in divided}
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_hook(partial(torch.mul, other=1 / spec.replicas))
        IGNORE.find()(stage, list(divided))
        self.laid |= {f"{index}.{name}": laid for name, laid in divided.items()}
        return parameters

    def _run(self, run: Callable[..., Any], batch: Batch) -> list[Tensor] | None:
        with loss_parallel() if "vocabulary" in self.spec.shared.values() else nullcontext():
            losses = super()._run(run, batch)
        return None if losses is None else list(map(whole, losses))

    def _total(self, value: Tensor) -> Tensor:
        return super()._total(whole(value))

    def named(self, which: str) -> Iterator[tuple[str, Any]]:
        """Yield parameters or buffers by full name.

        In the first forward, DistributedDataParallel removes the plain tensors of shared layers from a module. Only an
        optimizer, which received the parameters before, still has them.
        """
        if self.spec.data_parallel == "ddp" and which == "named_parameters":
            return iter(self.optimized)
        return super().named(which)

    def params(self) -> dict[str, Kept]:
        """Return the parameters as distributed tensors."""
        return self._as_laid(super().params())

    def param_grads(self) -> dict[str, Kept]:
        """Return the gradients, distributed like the parameters."""
        return self._as_laid(super().param_grads())

    def _as_laid(self, kept: dict[str, Kept]) -> dict[str, Kept]:
        return {name: self.laid[name].of(value) if name in self.laid else value for name, value in kept.items()}

    def clip(self, max_norm: float) -> float:
        """Clip as without tensor ranks, but separately for each mesh, because torch combines no two meshes."""
        grads = {name: grad for name, grad in self.param_grads().items() if grad is not None}
        squared = total_square(grads.values(), self.spec.device)
        dist.all_reduce(squared, group=self.mesh["pipeline"].get_group())
        norm = squared.sqrt()
        for _, parameter in self.named("named_parameters"):
            clip_grads_with_norm_(parameter, max_norm, norm)
        return float(norm)


def _in_ddp(stage: nn.Module, spec: StepSpec, **replicas: Any) -> nn.Module:
    unused = bool(spec.occasional)
    return DistributedDataParallel(stage, broadcast_buffers=False, find_unused_parameters=unused, **replicas)


def _mesh(spec: StepSpec) -> DeviceMesh:
    """Return the mesh of all ranks: pipeline, replicas (in halves for ``hsdp``), and tensor ranks."""
    sizes = {"pipeline": len(spec.placement)}
    if spec.data_parallel == "hsdp":
        sizes |= {"replicate": 2, "shard": spec.replicas // 2}
    else:
        sizes |= {"replicas": spec.replicas}
    if spec.tensor_ranks > 1:
        sizes |= {"tensor": spec.tensor_ranks}
    return _made(spec.device.type, tuple(sizes.values()), tuple(sizes))


@lru_cache(maxsize=8)
def _made(device_type: str, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """Return the mesh, made once: each mesh creates new process groups."""
    return init_device_mesh(device_type, shape, mesh_dim_names=names)
