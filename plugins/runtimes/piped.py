"""Shared code of runtimes that run a whole ``nn.Sequential`` in one process and cut each batch into chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from gradconform.runtime import Batch, ModuleSession, StepSpec, scale_auxiliary

#: All stages lie in one process, whose forward takes one input. Around it goes DistributedDataParallel, as torch's
#: tutorial of pipeline and data parallelism has it ("Training Transformer models using Distributed Data Parallel and
#: Pipeline Parallelism"). All forwards come before all backwards: with several stages that is LoopedBFS.
PIPED: Mapping[str, str] = {
    "layout": "two-replicas four-replicas",
    "schedule": "gpipe looped-bfs",
    "data_parallel": "ddp",
    "tensor_parallel": "whole-layers",
    "precision": "unmixed",
    "rows": "even ragged",  # all micro-batches are chunks of one tensor
    "arguments": "positional",
    # Seeds of dropout are keyword arguments, and DistributedDataParallel refuses a checkpoint that re-enters for each
    # chunk: "Expected to mark a variable ready only once".
    "layers": "plain checkpoint selective-checkpoint batch-norm",
    "experts": "dense",
    "use": "always-used",
    "context": "whole-sequences",
    # Targets of a second loss are keyword arguments.
    "predictions": "one-prediction",
}


class PipedSession(ModuleSession):
    """One replica: a pipe of all stages, a partition each, on one device."""

    def __init__(self, stages: Mapping[int, nn.Module], spec: StepSpec, pipe: Callable[..., nn.Module]) -> None:
        """Create the pipe without recomputation, which DistributedDataParallel refuses."""
        super().__init__(stages, spec)
        layers = nn.Sequential(*(stage for _, stage in sorted(stages.items())))
        devices = [spec.device] * len(layers)
        piped = pipe(layers, balance=[1] * len(layers), devices=devices, chunks=spec.microbatches, checkpoint="never")
        self.model = DistributedDataParallel(piped, broadcast_buffers=False)
        scale_auxiliary([layers], self._weight(1.0))

    def _weight(self, tokens: float) -> float:
        """Return the weight of a micro-batch's loss in its replica; the wrapper averages the replicas."""
        if self.spec.reduction == "mean":
            return 1.0 / self.spec.microbatches
        return self.spec.replicas / tokens

    def step(self, batch: Batch) -> list[Tensor]:
        """Call the pipe with the whole batch, and run autograd on the loss of its outputs."""
        tokens = torch.ones(2)
        if self.spec.reduction == "tokens":
            tokens = torch.tensor([batch.tokens(self.spec.counts), batch.positions()], device=self.spec.device)
            dist.all_reduce(tokens)
            scale_auxiliary([self.model], self._weight(float(tokens[1])))
        losses = self._losses(batch)
        (torch.stack(losses).sum() * self._weight(float(tokens[0]))).backward()
        return [loss.detach() for loss in losses]

    def accumulate(self, batch: Batch) -> list[Tensor]:
        """Step without the wrapper's reduction, which the next step does."""
        with self.model.no_sync():
            return self.step(batch)

    def evaluate(self, batch: Batch) -> list[Tensor]:
        """Call the pipe without gradients."""
        with torch.no_grad():
            return self._losses(batch)

    def _losses(self, batch: Batch) -> list[Tensor]:
        count = self.spec.microbatches
        pairs = zip(self.model(batch.x).tensor_split(count), batch.target.tensor_split(count), strict=True)
        return [self.spec.loss(output, target) for output, target in pairs]

    def clip(self, max_norm: float) -> float:
        """Clip as one process does, because it has the whole model."""
        return float(clip_grad_norm_(self.model.parameters(), max_norm))
