"""Pipeline runtimes: what a loss counts there, what is sent, cleared, tied and clipped.

Each class is the plain runtime of the kit with one thing done as a project did it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch, StepSpec

from .rebuilt import StepTarget

_Passed = dict[int, tuple[Tensor, Tensor]]


class NormalisedForMetrics(PlainSession):
    """torchtitan-2972: a pipeline's schedule runs the backward of a sum, which is divided by tokens behind it."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        """Return 1 where the loss is a sum over tokens: what is told is divided, what went back is not."""
        return 1.0 if self.spec.reduction == "tokens" else super().weight(batch, chunk)


class SummedOverMicrobatches(PlainSession):
    """DeepSpeed-7773: the engine of a pipeline never divides by the number of micro-batches."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        """Return what a replica's mean counts, for each micro-batch."""
        return 1.0 / self.spec.replicas if self.spec.reduction == "mean" else super().weight(batch, chunk)


class DividedBySchedule(PlainSession):
    """AReaL-1273: a loss that is normalised by its caller is divided by the number of micro-batches in the schedule."""

    def backward(self, passed: _Passed, loss: Tensor | None) -> None:
        """Divide, and run the backward."""
        super().backward(passed, None if loss is None else loss / self.spec.microbatches)


class StagesInitialisedAgain(PlainSession):
    """Automodel-3530: a new length of sequences has stages initialised again, which clears gradients."""

    clears = True
    length: int | None = None

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        """Initialise stages where sequences are of another length than before, then run the micro-batch."""
        if self.length != chunk.x.shape[1]:
            self.length = chunk.x.shape[1]
            self.initialise()
        return super().microbatch(batch, chunk, mb)

    def initialise(self) -> None:
        """Forget shapes, and gradients as if an inference of shapes had left them."""
        if self.clears:
            for _, parameter in self.named("named_parameters"):
                parameter.grad = None


class GradientsKept(StagesInitialisedAgain):
    """Automodel-3530, mended: where no inference of shapes has run there is nothing to be cleared."""

    clears = False


class GradShards(PlainSession):
    """Fast-LLM-550, mended: a buffer that stages share is added to the shard of each at every flush."""

    def passes(self, batch: Batch) -> list[Tensor | None]:
        """Begin with empty shards, and leave what they hold in ``grad``."""
        self.shards: dict[nn.Parameter, Tensor] = {}
        losses = super().passes(batch)
        for parameter, shard in self.shards.items():
            parameter.grad = shard
        return losses

    def take_gradients(self) -> None:
        """Flush what a micro-batch gave."""
        super().take_gradients()
        for _, parameter in self.trained():
            if parameter.grad is not None:
                self.flush(parameter, parameter.grad, accumulate=parameter in self.shards)
                parameter.grad = None

    def flush(self, parameter: nn.Parameter, buffer: Tensor, *, accumulate: bool) -> None:
        """Copy into the shard at the first flush, and add at later ones."""
        self.shards[parameter] = self.shards[parameter] + buffer if accumulate else buffer.clone()


class LastFlushKept(GradShards):
    """Fast-LLM-550: with one data-parallel rank each flush copies."""

    def flush(self, parameter: nn.Parameter, buffer: Tensor, *, accumulate: bool) -> None:
        """Copy, whatever was flushed before."""
        super().flush(parameter, buffer, accumulate=accumulate and self.spec.replicas > 1)


class ShapesOfFirst(PlainSession):
    """DeepSpeed-4777: the shape of what is sent is told once, and receive buffers are made once."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Know no shape yet."""
        super().__init__(modules, spec)
        self.told_to: set[tuple[int, bool]] = set()
        self.buffers_of: dict[tuple[int, bool], Tensor] = {}

    def send(self, value: Tensor, stage: int) -> None:
        """Send the shape with the first tensor alone."""
        if self.owner[stage] == self.spec.pipeline_rank:
            return
        back = stage + 1 in self.modules
        if (stage, back) not in self.told_to:
            self.told_to.add((stage, back))
            super().send(value, stage)
        else:
            dist.send(value.contiguous(), self.rank_of(stage))

    def received(self, stage: int, here: Tensor | None) -> Tensor:
        """Receive into the buffer of the first tensor."""
        back = stage - 1 in self.modules
        if (self.owner[stage] == self.spec.pipeline_rank and here is not None) or (stage, back) not in self.buffers_of:
            found = super().received(stage, here)
            self.buffers_of[stage, back] = found
            return found
        buffer = torch.empty_like(self.buffers_of[stage, back])
        dist.recv(buffer, self.rank_of(stage))
        return buffer


class LabelsInRing(PlainSession):
    """DeepSpeed-5729, mended: the labels that are loaded ahead lie in a buffer for each micro-batch in flight."""

    buffers_in_ring = 2

    def chunks(self, batch: Batch) -> list[Batch]:
        """Load each micro-batch's labels before the one before it is computed."""
        chunks = super().chunks(batch)
        ring: list[Tensor] = [chunk.target for chunk in chunks[: self.buffers_in_ring]]
        found = []
        for mb, chunk in enumerate(chunks):
            if mb + 1 < len(chunks):
                ring[(mb + 1) % self.buffers_in_ring] = chunks[mb + 1].target
            found.append(replace(chunk, target=ring[mb % self.buffers_in_ring]))
        return found


class LabelsOfNext(LabelsInRing):
    """DeepSpeed-5729: there is one buffer, and the loss takes the labels of the micro-batch that was loaded last."""

    buffers_in_ring = 1


class SendsBehind(PlainSession):
    """pytorch-139404, mended: input gradients wait for their sends by micro-batch."""

    def passes(self, batch: Batch) -> list[Tensor | None]:
        """Run all micro-batches forward, then all back, then send what came."""
        self.steps += 1
        self.round_parameters()
        chunks = self.chunks(batch)
        forwards = [self.forward(chunk) for chunk in chunks]
        self.results: dict[int, Tensor] = {}
        for mb, (passed, loss) in enumerate(forwards):
            self.back = mb
            weight = self.weight(batch, chunks[mb])
            self.backward(passed, None if loss is None else loss * weight)
            self.take_gradients()
        self.back = None
        first = min(self.modules)
        for mb in self.results:
            super().send(self.result_of(mb), first - 1)
        return [loss for _, loss in forwards]

    back: int | None = None

    def send(self, value: Tensor, stage: int) -> None:
        """Keep an input gradient until all backwards have run."""
        if self.back is None:
            super().send(value, stage)
        else:
            self.results[self.back] = value

    def result_of(self, mb: int) -> Tensor:
        """Return the input gradient of a micro-batch."""
        return self.results[mb]


class NewestResultKept(SendsBehind):
    """pytorch-139404: a stage keeps the newest input gradient alone."""

    def result_of(self, mb: int) -> Tensor:
        """Return what the last backward has left."""
        del mb
        return self.results[max(self.results)]


class TiedNotSummed(PlainSession):
    """piper-13: a weight that lies on two ranks is one parameter on each, and nobody adds their gradients."""

    def add_tied(self) -> None:
        """Leave each with its own."""


class ClippedByStage(PlainSession):
    """torchtitan-596: each rank hands its own parameters to ``clip_grad_norm_``."""

    def clip(self, max_norm: float) -> float:
        """Clip by the norm of the stages of this rank."""
        return float(clip_grad_norm_([parameter for _, parameter in self.trained()], max_norm))


class TiedCountedTwice(PlainSession):
    """Megatron-LM-7228: the norm has both copies of a tied weight."""

    def counted(self) -> list[tuple[str, nn.Parameter]]:
        """Return all parameters of this rank."""
        return self.trained()


class AuxiliaryDiscarded(PlainSession):
    """Automodel-1408: what puts the auxiliary loss into the graph returns a tensor that nobody takes."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Let every gate return what it was given."""
        super().__init__(modules, spec)
        for stage in self.running.values():
            for inner in stage.modules():
                if hasattr(inner, "auxiliary_scale"):
                    vars(inner)["forward"] = _discarding(type(inner).forward, inner)


def _discarding(forward: Any, gate: nn.Module) -> Any:
    def computed(x: Tensor) -> Tensor:
        forward(gate, x)
        return x

    return computed


class AuxiliaryNotNormalised(PlainSession):
    """Automodel-3359: auxiliary losses enter each micro-batch's backward as they are."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        """Return what it counts in a batch of one micro-batch."""
        del batch, chunk
        return 1.0 / self.spec.replicas if self.spec.reduction == "mean" else 1.0


class WholeCountedByEach(PlainSession):
    """RL-3788: parameters that tensor ranks have whole count in the norm once for each of them."""

    def squares(self) -> float:
        """Return the sum of squares of this rank's gradients, whoever else has them."""
        return math.fsum(float(p.grad.double().square().sum()) for _, p in self.counted() if p.grad is not None)


_PLAIN_ORDER = {"schedule": "1f1b gpipe", "auxiliary": "one-loss", "tensor_parallel": "whole-layers"}

normalised_for_metrics = StepTarget(NormalisedForMetrics)
summed_over_microbatches = StepTarget(SummedOverMicrobatches)
divided_by_schedule = StepTarget(DividedBySchedule)
stages_initialised_again = StepTarget(StagesInitialisedAgain)
gradients_kept = StepTarget(GradientsKept)
grad_shards = StepTarget(GradShards)
last_flush_kept = StepTarget(LastFlushKept)
shapes_of_first = StepTarget(ShapesOfFirst)
labels_in_ring = StepTarget(LabelsInRing)
labels_of_next = StepTarget(LabelsOfNext)
sends_behind = StepTarget(SendsBehind, **_PLAIN_ORDER)
newest_result_kept = StepTarget(NewestResultKept, **_PLAIN_ORDER)
tied_not_summed = StepTarget(TiedNotSummed)
clipped_by_stage = StepTarget(ClippedByStage)
tied_counted_twice = StepTarget(TiedCountedTwice)
auxiliary_discarded = StepTarget(AuxiliaryDiscarded)
auxiliary_not_normalised = StepTarget(AuxiliaryNotNormalised)
whole_counted_by_each = StepTarget(WholeCountedByEach)
