"""Faults over micro-batches and steps: dropped, overwritten, counted again, or returned wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradconform.reference.runtime import PlainSession
from gradconform.reference.variants.training_step import BackAsTheOrderSays
from gradconform.runtime import Batch

from .registry import each, fault

_Passed = dict[int, tuple[Tensor, Tensor]]


@fault("plain", "missing")
class MicrobatchDropped(PlainSession):
    """Runs no backward for micro-batch 3."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        third = list(batch.split())[3 % self.spec.microbatches]
        return 0.0 if torch.equal(third.x, chunk.x) else super().weight(batch, chunk)


@fault("plain", "missing")
class FirstMicrobatchOverwritten(PlainSession):
    """Drops the gradients of the first micro-batch when the second begins."""

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        if mb == 1:
            self.zero_grad()
        return super().microbatch(batch, chunk, mb)


@fault("plain", "only")
class OnlyLastMicrobatch(PlainSession):
    """Overwrites gradients with each micro-batch."""

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        self.zero_grad()
        return super().microbatch(batch, chunk, mb)


@fault("plain", "counted_twice")
class MicrobatchTwice(PlainSession):
    """Counts the last micro-batch twice."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        last = list(batch.split())[-1]
        return super().weight(batch, chunk) * (2.0 if torch.equal(last.x, chunk.x) else 1.0)


@fault("fsdp-accumulated", "only_this_step")
class StepOverwrites(PlainSession):
    """Lets a step overwrite the gradients of earlier ones."""

    def add(self, before: Mapping[nn.Parameter, Tensor]) -> None:
        """Nothing is added."""


@fault("fsdp-accumulated", "only_earlier_steps")
class SecondStepLost(PlainSession):
    """Drops the gradients of the second step."""

    def add(self, before: Mapping[nn.Parameter, Tensor]) -> None:
        if before:
            self.zero_grad()
        super().add(before)


@fault("checkpoint-accumulated", "divided_again")
class ScaledAgain(PlainSession):
    """Divides all accumulated gradients by the number of micro-batches at the end of each step."""

    def add(self, before: Mapping[nn.Parameter, Tensor]) -> None:
        super().add({parameter: grad / self.spec.microbatches for parameter, grad in before.items()})


@fault("fsdp-accumulated", "multiplied")
class SecondStepStartsAtFirst(PlainSession):
    """Adds the gradients of earlier steps twice, so that their sum is that of two accumulations."""

    def step(self, batch: Batch) -> list[Tensor] | None:
        losses = super().step(batch)
        each(self, lambda _, grad: 2.0 * grad)
        return losses


@fault("batch-norm")
class ZeroGradForgotten(PlainSession):
    """Keeps gradients that zero_grad must clear."""

    def zero_grad(self) -> None:
        """Keep all gradients."""


@fault("fsdp-evaluated", "cleared")
class EvaluationClears(PlainSession):
    """Clears gradients in an evaluation."""

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        losses = super().evaluate(batch)
        self.zero_grad()
        return losses


@fault("fsdp-evaluated")
class EvaluationAdds(PlainSession):
    """Runs a backward in an evaluation too."""

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        return self.step(batch)


@fault("batch-norm", "batches_counted")
class ForwardOnceMore(PlainSession):
    """Runs every stage once more to find the shapes of its outputs."""

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        if mb == 0 and self.steps == 1:
            with torch.no_grad():
                self.forward(chunk)
        return super().microbatch(batch, chunk, mb)


@fault("batch-norm", "batches_counted")
class BuffersLeft(PlainSession):
    """Restores the buffers to their values before the step."""

    def step(self, batch: Batch) -> list[Tensor] | None:
        before = {name: value.clone() for name, value in self.named("named_buffers")}
        losses = super().step(batch)
        for name, value in self.named("named_buffers"):
            value.copy_(before[name])
        return losses


@fault("ragged")
class RaggedPadded(PlainSession):
    """Pads the last micro-batch to the size of the others, and counts the padding."""

    def chunks(self, batch: Batch) -> list[Batch]:
        chunks = super().chunks(batch)
        rows = len(chunks[0].x)
        return [_padded(chunk, rows - len(chunk.x)) for chunk in chunks]


def _padded(chunk: Batch, rows: int) -> Batch:
    def longer(value: Tensor) -> Tensor:
        return torch.cat([value, value[-1:].expand(rows, *value.shape[1:])]) if rows else value

    return chunk.map(longer)


@fault("ragged")
class RaggedCut(PlainSession):
    """Cuts every micro-batch to the size of the smallest."""

    def chunks(self, batch: Batch) -> list[Batch]:
        chunks = super().chunks(batch)
        rows = min(len(chunk.x) for chunk in chunks)
        return [chunk.map(lambda value: value[:rows]) for chunk in chunks]


@fault("lengths")
class SequencesPadded(PlainSession):
    """Pads all micro-batches to the longest sequence, and counts the padding."""

    def chunks(self, batch: Batch) -> list[Batch]:
        return super().chunks(replace(batch, lengths=()))


@fault("lengths")
class SequencesCut(PlainSession):
    """Cuts all micro-batches to the shortest sequence."""

    def chunks(self, batch: Batch) -> list[Batch]:
        return super().chunks(replace(batch, lengths=(min(batch.lengths),) * len(batch.lengths)))


@fault("lengths")
class LengthsOfFirstStep(PlainSession):
    """Uses the sequence lengths of the first step for all steps."""

    first: tuple[int, ...] = ()

    def chunks(self, batch: Batch) -> list[Batch]:
        self.first = self.first or batch.lengths
        return super().chunks(replace(batch, lengths=self.first))


@fault("lengths", "divided_by_other")
class PaddingCounted(PlainSession):
    """Divides by the tokens of the padded batch."""

    def tokens(self, batch: Batch) -> float:
        return super().tokens(replace(batch, lengths=()))


@fault("plain")
class LossesReversed(PlainSession):
    """Returns the losses of micro-batches in the order of the backward."""

    def reported_losses(self, losses: list[Tensor | None]) -> list[Tensor] | None:
        told = super().reported_losses(losses)
        return told and told[::-1]


@fault("plain")
class MeanLossTold(PlainSession):
    """Returns one loss for the step."""

    def reported_losses(self, losses: list[Tensor | None]) -> list[Tensor] | None:
        told = super().reported_losses(losses)
        return told and [torch.stack(told).mean()]


@fault("fsdp-accumulated")
class CacheGrows(PlainSession):
    """Keeps the outputs of every step."""

    def held(self) -> dict[str, int]:
        return {"the output cache": self.steps * self.spec.microbatches}


@fault("csv")
class OldestBack(BackAsTheOrderSays):
    """Runs the backward of the oldest micro-batch on all ranks but the last, against the schedule's order."""

    def order(self, forwards: list[tuple[_Passed, Tensor | None]]) -> list[tuple[_Passed, Tensor | None]]:
        return super().order(forwards) if self.spec.is_last else forwards
