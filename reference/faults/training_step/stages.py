"""Faults inside stages and between them: keyword arguments, dropout, auxiliary losses, what is handed on."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch

from .registry import each, fault


class _Around(PlainSession):
    """Changes something of the stages around each forward."""

    def around(self, chunk: Batch) -> Batch:
        """Return what the stages are given in place of a micro-batch."""
        return chunk

    def forward(self, chunk: Batch) -> tuple[dict[int, tuple[Tensor, Tensor]], Tensor | None]:
        return super().forward(self.around(chunk))


@fault("auxiliary")
class KeywordsOfFirst(_Around):
    """Passes the keyword arguments of the first micro-batch to all."""

    def around(self, chunk: Batch) -> Batch:
        if not hasattr(self, "first"):
            self.first = chunk.kwargs
        return Batch(x=chunk.x, target=chunk.target, kwargs=self.first)


@fault("auxiliary")
class KeywordsDropped(_Around):
    """Passes no keyword arguments on."""

    def around(self, chunk: Batch) -> Batch:
        return Batch(x=chunk.x, target=chunk.target, kwargs={})


@fault("low-rank-dropout")
class DropoutOff(_Around):
    """Runs training stages in eval mode."""

    def around(self, chunk: Batch) -> Batch:
        for module in self.modules.values():
            module.eval()
        return chunk


@fault("low-rank-dropout")
class SeedOfFirst(_Around):
    """Draws the dropout of every micro-batch with the seed of the first."""

    def around(self, chunk: Batch) -> Batch:
        if not hasattr(self, "seeds"):
            self.seeds = chunk.kwargs.get("seeds")
        given = {"seeds": self.seeds} if self.seeds is not None else {}
        return Batch(x=chunk.x, target=chunk.target, kwargs={**chunk.kwargs, **given})


@fault("low-rank-dropout")
class RecomputedUnderAnotherSeed(PlainSession):
    """Recomputes the forward for the backward with another dropout."""

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        with torch.no_grad():
            losses = self.forward(chunk)[1]
        again = {name: value + 1 if name == "seeds" else value for name, value in chunk.kwargs.items()}
        super().microbatch(batch, Batch(x=chunk.x, target=chunk.target, kwargs=again), mb)
        return losses


@fault("low-rank-dropout")
class FrozenTrained(PlainSession):
    """Gives frozen weights a gradient."""

    def reduce(self) -> None:
        super().reduce()
        for _, parameter in self.named("named_parameters"):
            if not parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)


@fault("low-rank-dropout", "never_accumulated")
class AdaptersForgotten(PlainSession):
    """Gives low-rank adapters no gradient."""

    def reduce(self) -> None:
        super().reduce()
        each(self, lambda name, grad: None if ".down.down." in name else grad)


@fault("auxiliary", "auxiliary_missing")
class AuxiliaryDropped(PlainSession):
    """Drops the auxiliary losses."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        return 0.0


@fault("auxiliary", "auxiliary_missing")
class AuxiliaryDroppedInside(PlainSession):
    """Drops the auxiliary losses of all stages but the last."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        return super().auxiliary_weight(batch, chunk) if self.spec.is_last else 0.0


@fault("auxiliary", "auxiliary_scaled")
class AuxiliaryByMicrobatches(PlainSession):
    """Divides the auxiliary losses by the number of micro-batches although the loss is a sum."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        return super().auxiliary_weight(batch, chunk) / self.spec.microbatches


@fault("auxiliary", "auxiliary_scaled")
class AuxiliaryTimesMicrobatches(PlainSession):
    """Multiplies the auxiliary losses by the number of micro-batches."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        return super().auxiliary_weight(batch, chunk) * self.spec.microbatches


@fault("auxiliary", "auxiliary_scaled")
class AuxiliaryTwice(PlainSession):
    """Counts the auxiliary losses twice."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        return 2.0 * super().auxiliary_weight(batch, chunk)


@fault("plain")
class HandedGradsDoubled(PlainSession):
    """Doubles the gradients that a stage sends back."""

    def send(self, value: Tensor, stage: int) -> None:
        super().send(2.0 * value if stage < max(self.modules) else value, stage)


@fault("plain", "zero")
class HandedGradsLost(PlainSession):
    """Sends zeros back."""

    def send(self, value: Tensor, stage: int) -> None:
        super().send(torch.zeros_like(value) if stage < max(self.modules) else value, stage)


@fault("plain")
class HandedOnInHalfPrecision(PlainSession):
    """Sends outputs in bfloat16."""

    def send(self, value: Tensor, stage: int) -> None:
        super().send(value.bfloat16().to(value.dtype), stage)


@fault("hooked")
class ReceivedInSameTensor(PlainSession):
    """Receives into the same tensor each time, with the hooks of earlier forwards."""

    def leaf(self, value: Tensor, stage: int) -> Tensor:
        own = super().leaf(value, stage)
        if not own.requires_grad:
            return own
        self.leaves: dict[int, Tensor] = getattr(self, "leaves", {})
        kept = self.leaves.setdefault(stage, own)
        if kept.shape != own.shape:
            return own
        with torch.no_grad():
            kept.copy_(own)
        kept.grad = None
        return kept


@fault("gpipe-sum")
class GradientsOfOtherMicrobatch(PlainSession):
    """Sends back the gradients of the previous micro-batch."""

    def send(self, value: Tensor, stage: int) -> None:
        if stage < max(self.modules):
            before, self.before = getattr(self, "before", torch.zeros_like(value)), value.clone()
            value = before if before.shape == value.shape else value
        super().send(value, stage)


@fault("selective-checkpoint")
class BackTwice(PlainSession):
    """Runs a backward for a stage's inputs, then one for its weights, and ignores an error of the second."""

    def backward(self, passed: dict[int, tuple[Tensor, Tensor]], loss: Tensor | None) -> None:
        handed: Tensor | None = None
        for stage in sorted(passed, reverse=True):
            value, output = passed[stage]
            root = output if loss is None or stage < self.spec.stages - 1 else loss
            grad = self.received(stage + 1, handed) if root is output else None
            if stage:
                (handed,) = torch.autograd.grad([root], [value], [grad], retain_graph=True)
                self.send(handed, stage - 1)
            with suppress(RuntimeError):
                torch.autograd.backward([root], [grad], inputs=list(self.running[stage].parameters()))
