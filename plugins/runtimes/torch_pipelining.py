"""torch's own runtime: ``PipelineStage``, its schedules, and the wrappers that torch documents beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from gradconform.pipeline.runtime import make_stages
from gradconform.runtime import Batch, ModuleSession, StepSpec, scale_auxiliary
from gradconform.torch_releases import pipelining


class TorchRuntime:
    """Stages wrapped one by one, then put into torch's schedule."""

    name = "torch"
    #: A weight that lies on two ranks is nobody's business in torch's runtime, and stages take chunks of one size.
    claims: Mapping[str, str] = {"rows": "even", "weights": "all frozen-stage frozen-layers"}

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> TorchSession:
        """Wrap the stages of this rank and make the schedule."""
        return TorchSession(stages, spec)


class TorchSession(ModuleSession):
    """One rank of a torch pipeline."""

    def __init__(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Make the mesh, wrap the stages and make the schedule: every rank does so at the same time."""
        pipelining.wait_for_all(dist.get_default_backend_for_device(spec.device))
        self.mesh = _mesh(spec)
        self.replicas = self.mesh["replicate", "shard"] if spec.data_parallel == "hsdp" else self.mesh["replicas"]
        super().__init__({index: self._wrapped(stage, spec) for index, stage in stages.items()}, spec)
        # Wrappers take the mean over replicas: where a sum is wanted, every loss counts as many times.
        self._times = float(spec.replicas) if spec.reduction != "mean" else 1.0
        self._factor = self._times
        scale_auxiliary(self.modules.values(), self._times)  # as the loss
        pipeline = self.mesh["pipeline"].get_group()
        self.stages = make_stages(self.modules, spec.stages, spec.device, pipeline, spec.note)
        pipelining.connect(self.stages, dist.get_backend(pipeline))
        found = pipelining.SCHEDULE_CLASS.find()(spec.schedule)
        options = {"loss_fn": self._loss, **pipelining.scaling(found, scaled=spec.reduction == "mean")}
        single = issubclass(found, pipelining.SINGLE.find())
        self.schedule: Any = found(self.stages[0] if single else self.stages, spec.microbatches, **options)

    def _wrapped(self, stage: nn.Module, spec: StepSpec) -> nn.Module:
        if spec.data_parallel == "none":
            return stage
        if spec.data_parallel == "ddp":
            return DistributedDataParallel(stage, process_group=self.replicas.get_group(), broadcast_buffers=False)
        fully_shard(stage, mesh=self.replicas, reshard_after_forward=spec.data_parallel != "fsdp-kept")
        return stage

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.spec.loss(output, target) * self._factor

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule."""
        return self._run(self.schedule.step, batch)

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule without its backward."""
        return self._run(pipelining.EVALUATION.find(self.schedule), batch)

    def _run(self, run: Callable[..., Any], batch: Batch) -> list[Tensor] | None:
        spec = self.spec
        if spec.reduction == "tokens":
            tokens = spec.counts(batch.target).sum()
            for group in self.replicas.get_all_groups():
                dist.all_reduce(tokens, group=group)
            self._factor = self._times / float(tokens)
        losses: list[Tensor] = []
        run(
            *((batch.x,) if spec.is_first else ()),
            target=batch.target if spec.is_last else None,
            losses=losses if spec.is_last else None,
            **batch.kwargs,
        )
        return [loss.detach() / self._factor for loss in losses] if spec.is_last else None

    def clip(self, max_norm: float) -> float:
        """Take the norm over shards, then over the ranks of the pipeline, and clip by it, as torchtitan does."""
        parameters = [one for _, one in self.named("named_parameters") if one.grad is not None]
        norm = get_total_norm([one.grad for one in parameters if one.grad is not None])
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        squared = whole.square()
        dist.all_reduce(squared, group=self.mesh["pipeline"].get_group())
        whole = squared.sqrt()
        clip_grads_with_norm_(parameters, max_norm, whole)
        return float(whole)

    def held(self) -> dict[str, int]:
        """Tell how much is in the caches of stages, which a step clears where it begins."""
        return {
            f"the {name} of stage {stage.stage_index}": len(cache.find(stage))
            for stage in self.stages
            for name, cache in pipelining.CACHES.items()
            if cache.there(stage)
        }

    def close(self) -> None:
        """Let go of the stages; the mesh is kept for the next run."""
        self.stages.clear()


def _mesh(spec: StepSpec) -> DeviceMesh:
    """Return the mesh of all ranks: the ranks of a pipeline, beside it its replicas, in halves for ``hsdp``."""
    pipeline_ranks = len(spec.placement)
    if spec.data_parallel == "hsdp":
        return _made(spec.device.type, (pipeline_ranks, 2, spec.replicas // 2), ("pipeline", "replicate", "shard"))
    return _made(spec.device.type, (pipeline_ranks, spec.replicas), ("pipeline", "replicas"))


@lru_cache(maxsize=8)
def _made(device_type: str, shape: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """Make a mesh once: each takes process groups of its own."""
    return init_device_mesh(device_type, shape, mesh_dim_names=names)
