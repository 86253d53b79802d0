"""d9d's pipeline schedules: the registered runtime ``d9d``.

Its own context supports only CUDA; its schedules use only a mesh of the ranks and a logger of it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gradconform.adapter import UnsupportedError, needed
from gradconform.runtime import Batch, ModuleSession, StepSpec, scale_auxiliary
from gradconform.text.counts import count

from .named_device import NamedDevice

with needed("d9d", "pip install --no-deps d9d==0.24.0 optree==0.20.0 && pip install pydantic"):
    from d9d.core.types import TensorSpec
    from d9d.internals.grad_norm import clip_grad_norm_distributed_, group_parameters_for_norm
    from d9d.pipelining.api import PipelineStageInfo, StageBoundary
    from d9d.pipelining.factory.config import (
        PipelineSchedule1F1BConfig,
        PipelineScheduleDualPipeVConfig,
        PipelineScheduleGPipeConfig,
        PipelineScheduleLoopedBFSConfig,
        PipelineScheduleZeroBubbleVConfig,
    )
    from d9d.pipelining.factory.factory import build_schedule

_SCHEDULES: Mapping[str, Callable[[], Any]] = {
    "1F1B": lambda: PipelineSchedule1F1BConfig(num_stages_per_rank=1, zero_bubble=False),
    "GPipe": PipelineScheduleGPipeConfig,
    "Interleaved1F1B": lambda: PipelineSchedule1F1BConfig(num_stages_per_rank=2, zero_bubble=False),
    "LoopedBFS": lambda: PipelineScheduleLoopedBFSConfig(num_stages_per_rank=2),
    "InterleavedZeroBubble": lambda: PipelineSchedule1F1BConfig(num_stages_per_rank=2, zero_bubble=True),
    "ZBVZeroBubble": PipelineScheduleZeroBubbleVConfig,
    "DualPipeV": PipelineScheduleDualPipeVConfig,
}


class D9dRuntime:
    """The runtime of d9d, whose stages declare the shapes of their outputs."""

    name = "d9d"
    claims: Mapping[str, str] = {
        "schedule": "1f1b gpipe interleaved-1f1b looped-bfs interleaved-zero-bubble zbv-zero-bubble dual-pipe-v",
        "layout": "two-stages four-stages",  # what keeps replicas together runs on streams of CUDA
        "data_parallel": "unwrapped",
        "tensor_parallel": "whole-layers",
        "precision": "unmixed",
        # Its schedule for inference has one stage on each rank, and is not that of the training.
        "steps": "one-step accumulated zeroed clipped",
        # Nothing sums the gradients of a weight on two ranks, and autograd raises on a first stage without gradients.
        "weights": "all frozen-layers",
        # A checkpoint that re-enters refuses how its backward is run.
        "layers": "plain checkpoint selective-checkpoint dropout batch-norm",
        "experts": "dense",
        "use": "always-used",
        "context": "whole-sequences",
        "predictions": "one-prediction",  # a second loss of the last stage needs the weight of the first
    }

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> D9dSession:
        """Build the schedule."""
        return D9dSession(stages, spec)


class D9dSession(ModuleSession):
    """One rank of a schedule."""

    def __init__(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Create the mesh and the schedule, on all ranks at the same time."""
        super().__init__(stages, spec)
        self.mesh = _mesh(spec.device.type, len(spec.placement))
        self.taking = {index: _Taking(stage, index) for index, stage in stages.items()}
        self._weight = 1.0 / spec.microbatches if spec.reduction == "mean" else 1.0
        scale_auxiliary(stages.values(), self._weight)
        logger = logging.getLogger("gradconform.d9d")
        parameters = SimpleNamespace(is_distributed=True)
        context: Any = SimpleNamespace(mesh_for=lambda _: self.mesh, logger=logger, mesh_params=parameters)
        self.built, _ = build_schedule(context, _SCHEDULES[spec.schedule](), self._provided)

    def _provided(self, info: PipelineStageInfo) -> nn.Module:
        return self.taking[info.current_stage]

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule on the micro-batches."""
        each = list(batch.split())
        if self.spec.reduction == "tokens":
            self._weight = 1.0 / batch.tokens(self.spec.counts)
            scale_auxiliary(self.modules.values(), 1.0 / batch.positions())
        losses: dict[int, Tensor] = {}

        def loss_of(output: Tensor, number: int) -> Tensor:
            loss = self.spec.loss(output, each[number].target)
            losses[number] = loss.detach()
            return loss * self._weight

        with NamedDevice(self.spec.device):
            self._set_shapes(each)
            self.built.schedule.step(tuple(mb.x for mb in each), tuple(dict(mb.kwargs) for mb in each), loss_of)
        return [loss for _, loss in sorted(losses.items())] if self.spec.is_last else None

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Raise ``UnsupportedError``: evaluation is not claimed."""
        msg = f"its schedules for training cannot evaluate; got {count(batch.microbatches, 'micro-batch')}"
        raise UnsupportedError(msg)

    def _set_shapes(self, batches: list[Batch]) -> None:
        """Set the output shapes of every stage, from the input shape of the first one."""
        owner = {index: rank for rank, row in enumerate(self.spec.placement) for index in row}
        for shape, batch in {one.x.shape: one for one in batches}.items():
            x = batch.x
            for index in range(self.spec.stages - 1):
                specs: list[Any] = [None]
                if index in self.modules:
                    y = self._put_out(index, x, batch)
                    specs = [TensorSpec(shape=tuple(y.shape), dtype=y.dtype)]
                dist.broadcast_object_list(specs, src=owner[index])
                x = torch.zeros(specs[0].shape, dtype=specs[0].dtype, device=self.spec.device)
                for stage in self.taking.values():
                    stage.sent[index, shape] = specs[0]

    def _put_out(self, index: int, x: Tensor, batch: Batch) -> Tensor:
        """Return the outputs of a copy of a stage, so that the stage does not change."""
        with torch.no_grad():
            output: Tensor = copy.deepcopy(self.modules[index]).eval()(x, **batch.kwargs)
        return output

    def clip(self, max_norm: float) -> float:
        """Clip as its training loop does."""
        trained = [one for _, one in self.named("named_parameters") if one.requires_grad]
        with NamedDevice(self.spec.device):
            groups = group_parameters_for_norm(trained)
            norm = clip_grad_norm_distributed_(groups, max_norm=max_norm, norm_type=2.0, pp_mesh=self.mesh)
        return float(norm)


class _Taking(nn.Module):
    """A stage with the methods that the schedules call on a module."""

    def __init__(self, stage: nn.Module, index: int) -> None:
        super().__init__()
        self.stage, self.index = stage, index
        self.sent: dict[tuple[int, torch.Size], TensorSpec] = {}

    def forward(self, inputs: Tensor, shared: Mapping[str, Tensor]) -> Tensor:
        """Call the stage."""
        output: Tensor = self.stage(inputs, **shared)
        return output

    def stage_transfer_spec(self, pipeline_input: Tensor, boundary: StageBoundary) -> TensorSpec:
        """Return the shapes of this stage's inputs or outputs."""
        return self.sent[self.index - (boundary is StageBoundary.incoming), pipeline_input.shape]


@lru_cache(maxsize=8)
def _mesh(device_type: str, ranks: int) -> DeviceMesh:
    """Return the mesh, made once: each mesh creates new process groups."""
    return init_device_mesh(device_type, (ranks,), mesh_dim_names=("pp",))
