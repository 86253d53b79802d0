"""Right variants of training steps, each with one difference from the plain runtime; no check may fail them.

A target names one by its name with underscores: ``gradconform.reference.variants.training_step:split_backward``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import get_total_norm
from torch.utils.checkpoint import checkpoint

from gradconform.reference import walked_twice as split
from gradconform.reference.runtime import LOWER, PlainSession
from gradconform.runtime import Batch, Kept, Shard, StepSpec, scale_auxiliary, scale_second

from . import context, experts, tensor_ranks
from .step_registry import STEP_VARIANTS, StepVariant, right

__all__ = ["STEP_VARIANTS", "StepVariant", "context", "experts", "tensor_ranks"]

_Passed = dict[int, tuple[Tensor, Tensor]]


_REPLICAS = ("ddp", "ddp-tokens", "fsdp-accumulated", "ddp-unreduced")
_CLIPPED = ("zero-bubble-clipped", "tied-clipped")
#: The claims of a runtime whose BatchNorm buffers depend on the number and order of its forwards.
_WITHOUT_BATCH_NORM = "plain checkpoint reentrant-checkpoint selective-checkpoint dropout"

#: The claims of a runtime that reduces all parameters alike.
_SAME_EXPERTS = "dense whole-experts"


def __getattr__(name: str) -> StepVariant:
    """Return a variant by its name with underscores."""
    found = STEP_VARIANTS.get(name.replace("_", "-"))
    if found is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return found


# The order of micro-batches.


@right("plain", "gpipe-sum", "ddp-tokens", layers=_WITHOUT_BATCH_NORM)
class LastMicrobatchFirst(PlainSession):
    """Runs the micro-batches in reverse."""

    def chunks(self, batch: Batch) -> list[Batch]:
        return super().chunks(batch)[::-1]

    def reported_losses(self, losses: list[Tensor | None]) -> list[Tensor] | None:
        return super().reported_losses(losses[::-1] if torch.is_grad_enabled() else losses)


@right("lengths", layers=_WITHOUT_BATCH_NORM)
class LongestSequencesFirst(PlainSession):
    """Runs the micro-batches with the longest sequences first."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        super().__init__(modules, spec)
        self.places: list[int] = []

    def chunks(self, batch: Batch) -> list[Batch]:
        chunks = super().chunks(batch)
        self.places = sorted(range(len(chunks)), key=lambda mb: -chunks[mb].x.shape[1])
        return [chunks[mb] for mb in self.places]

    def reported_losses(self, losses: list[Tensor | None]) -> list[Tensor] | None:
        if torch.is_grad_enabled():
            losses = [losses[self.places.index(mb)] for mb in range(len(losses))]
        return super().reported_losses(losses)


class _AllForward(PlainSession):
    """Runs all micro-batches forward before the first backward."""

    def order(self, forwards: list[tuple[_Passed, Tensor | None]]) -> list[tuple[_Passed, Tensor | None]]:
        """Return the forwards in the order of their backwards."""
        return forwards

    def passes(self, batch: Batch) -> list[Tensor | None]:
        self.steps += 1
        self.round_parameters()
        chunks = self.chunks(batch)
        weight = self.weight(batch, chunks[0])
        scale_auxiliary(self.running.values(), self.auxiliary_weight(batch, chunks[0]))
        scale_second(self.running.values(), self.second_weight(batch, chunks[0]))
        forwards = [self.forward(chunk) for chunk in chunks]
        for passed, loss in self.order(forwards):
            self.backward(passed, None if loss is None else loss * weight)
            self.take_gradients()
        return [loss for _, loss in forwards]


@right("plain", "auxiliary", "batch-norm", "low-rank-dropout", "lengths")
class AllForwardFirst(_AllForward):
    """Runs all forwards, then all backwards in the same order."""


@right("plain", "auxiliary", "checkpoint-accumulated", "low-rank-dropout")
class LastBackwardFirst(_AllForward):
    """Runs all forwards, then all backwards from the last to the first."""

    def order(self, forwards: list[tuple[_Passed, Tensor | None]]) -> list[tuple[_Passed, Tensor | None]]:
        return forwards[::-1]


@right("plain", "zero-bubble-clipped", "csv", "unreduced")
class BackAsTheOrderSays(_AllForward):
    """Runs all forwards, then all backwards in the schedule's order of this rank."""

    def order(self, forwards: list[tuple[_Passed, Tensor | None]]) -> list[tuple[_Passed, Tensor | None]]:
        cells = " ".join(self.spec.order[self.spec.pipeline_rank])
        return [forwards[mb] for mb in dict.fromkeys(map(int, re.findall(r"\d[BI](\d+)", cells)))]


# How a stage runs.


@right("plain", "auxiliary", "checkpoint-accumulated", "zero-bubble-clipped")
class SplitBackward(PlainSession):
    """Runs the input gradients of a micro-batch through all stages, and then its weight gradients."""

    def backward(self, passed: _Passed, loss: Tensor | None) -> None:
        handed: Tensor | None = None
        waiting: list[tuple[nn.Module, Any]] = []
        for stage in sorted(passed, reverse=True):
            value, output = passed[stage]
            whole = loss is not None and stage == self.spec.stages - 1
            grads = None if whole else [self.received(stage + 1, handed)]
            roots = [loss if whole else output]
            module = self.running[stage]
            if roots[0].requires_grad:  # type: ignore[union-attr] # a loss that is whole is one
                found, context = split.stage_backward_input(roots, grads, [value], module.parameters())
                waiting.append((module, context))
            else:
                found = (None,)
            if stage:
                handed = torch.zeros_like(value) if found[0] is None else found[0]
                self.send(handed, stage - 1)
        for module, context in waiting:
            split.stage_backward_weight(module.parameters(), context)


class _Checkpointed(nn.Module):
    """A module that repeats a stage in its backward."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, value: Tensor, **kwargs: Any) -> Any:
        return checkpoint(self.stage, value, use_reentrant=False, **kwargs)


@right(
    "plain",
    "gpipe-sum",
    "auxiliary",
    "low-rank-dropout",
    layers=_WITHOUT_BATCH_NORM,
    experts="dense",
    context="whole-sequences",
)
class EverythingRecomputed(PlainSession):
    """Stores nothing of a stage's forward, and recomputes it in the backward."""

    prefixes = ("stage.",)

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        super().__init__({index: _Checkpointed(stage) for index, stage in modules.items()}, spec)


# How micro-batches add up.


@right("plain", "gpipe-sum", "checkpoint-accumulated")
class SummedInFloat64(PlainSession):
    """Sums the gradients of micro-batches in float64, and rounds the sum."""

    def step(self, batch: Batch) -> list[Tensor] | None:
        self.sums: dict[nn.Parameter, Tensor] = {}
        return super().step(batch)

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        loss = super().microbatch(batch, chunk, mb)
        for parameter, grad in self.kept().items():
            self.sums[parameter] = self.sums.get(parameter, torch.zeros_like(grad, dtype=torch.float64)) + grad
        return loss

    def reduce(self) -> None:
        for parameter, total in self.sums.items():
            parameter.grad = total.to(parameter.dtype)
        super().reduce()


@right("fsdp-accumulated", "checkpoint-accumulated")
class AddedInPlace(PlainSession):
    """Adds the gradients of a step to the tensors of earlier steps."""

    def add(self, before: Mapping[nn.Parameter, Tensor]) -> None:
        for parameter, grad in before.items():
            parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)


# The other losses have other divisors.
@right("plain", "ddp", "ddp-tokens", experts="dense", predictions="one-prediction")
class DividedLast(PlainSession):
    """Counts every loss once, and divides the sum of all replicas at the end."""

    def step(self, batch: Batch) -> list[Tensor] | None:
        self.share = super().weight(batch, batch)
        return super().step(batch)

    def weight(self, batch: Batch, chunk: Batch) -> float:
        del batch, chunk
        return 1.0

    def reduce(self) -> None:
        super().reduce()
        for _, parameter in self.trained():
            if parameter.grad is not None:
                parameter.grad = parameter.grad * self.share


@right("two-predictions", "ddp-predictions", "mean-of-predictions")
class SecondLossInTokensOfFirst(PlainSession):
    """Divides both losses by the tokens of the first, and corrects the second by the ratio."""

    def second_weight(self, batch: Batch, chunk: Batch) -> float:
        if not self.spec.second_target or self.spec.reduction != "tokens":
            return super().second_weight(batch, chunk)
        return self.tokens(batch) / self.second_tokens(batch) * self.weight(batch, chunk)


# How replicas are reduced.


@right(*_REPLICAS)
class EachMicrobatchReduced(PlainSession):
    """Reduces the gradients of each micro-batch separately."""

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        before = self.kept()
        loss = super().microbatch(batch, chunk, mb)
        super().reduce()
        self.add(before)
        return loss

    def reduce(self) -> None:
        """Do nothing: this was already done."""


@right(*_REPLICAS)
class ReducedInFloat64(PlainSession):
    """Sums over replicas in float64."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value.double()).to(value.dtype)


@right("ddp", "ddp-tokens", experts=_SAME_EXPERTS)
class AveragedOverReplicas(PlainSession):
    """Divides each replica's gradients by its own share, and averages over replicas, as wrappers do."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return super().weight(batch, chunk) * self.spec.replicas

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value / self.spec.replicas)


@right(*_REPLICAS, experts=_SAME_EXPERTS, use="always-used")
class OneBucket(PlainSession):
    """Reduces all gradients in one buffer, of which they are views from then on."""

    def reduce(self) -> None:
        trained = sorted(self.trained(), key=lambda one: one[0])
        grads = [parameter.grad for _, parameter in trained if parameter.grad is not None]
        if not grads:
            return
        bucket = self.over_replicas(torch.cat([grad.flatten() for grad in grads]))
        parts = bucket.split([grad.numel() for grad in grads])
        for (_, parameter), part in zip(trained, parts, strict=True):
            parameter.grad = part.view_as(parameter)


class _WithGroup(PlainSession):
    """A session with a process group of the replicas of its stages."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        super().__init__(modules, spec)
        ranks = range(len(spec.placement))
        groups = [dist.new_group([rank * spec.replicas + one for one in range(spec.replicas)]) for rank in ranks]
        self.group = groups[spec.pipeline_rank]


@right(*_REPLICAS, experts=_SAME_EXPERTS, use="always-used")
class ReducedBehindTheBackward(_WithGroup):
    """Starts all reductions at once, and waits for them at the end of the step."""

    def reduce(self) -> None:
        begun = []
        for name, parameter in sorted(self.trained(), key=lambda one: one[0]):
            self.spec.note(f"reducing the gradient of {name}")
            if parameter.grad is not None:
                begun.append(dist.all_reduce(parameter.grad, group=self.group, async_op=True))
        for work in begun:
            if work is not None:
                work.wait()


# In mixed precision the stored parameters receive no gradient.
@right(*_REPLICAS, precision="unmixed autocast", experts=_SAME_EXPERTS, use="always-used")
class ReducedByHooks(PlainSession):
    """Reduces each gradient in the last micro-batch's backward, as soon as it is complete."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        super().__init__(modules, spec)
        self.last = False
        for _, parameter in self.named("named_parameters"):
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._came)

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        self.last = mb == self.spec.microbatches - 1
        return super().microbatch(batch, chunk, mb)

    def _came(self, parameter: Tensor) -> None:
        if self.last and parameter.grad is not None:
            parameter.grad = self.over_replicas(parameter.grad)

    def reduce(self) -> None:
        """Do nothing: this was already done."""


@right("fsdp-accumulated")
class UnevenShards(PlainSession):
    """Stores one row of each gradient on the first replica, and all others on the last."""

    def own(self, grad: Tensor | None) -> Kept:
        if grad is None or not self.spec.data_parallel.startswith(("fsdp", "hsdp")):
            return grad
        starts = [0, *[min(1, len(grad))] * (self.spec.replicas - 1), len(grad)]
        start, end = starts[self.spec.replica : self.spec.replica + 2]
        return Shard(grad[start:end], start, len(grad))


# In which precision stages run.


@right("autocast")
class WholeStepUnderAutocast(PlainSession):
    """Runs the backward under autocast too, and casts each weight once per step."""

    def step(self, batch: Batch) -> list[Tensor] | None:
        with super().autocast():
            return super().step(batch)

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        with super().autocast():
            return super().evaluate(batch)

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext()


@right("fsdp-mixed")
class RoundedInEachUse(PlainSession):
    """Rounds each parameter at each use, and lets autograd sum its gradients."""

    prefixes = ("stage.",)

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        super().__init__({index: _Rounded(stage) for index, stage in modules.items()}, spec)

    def running_of(self, stage: nn.Module) -> nn.Module:
        return stage


class _Rounded(nn.Module):
    """A module that runs a stage on its parameters in bfloat16."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, value: Tensor, **kwargs: Any) -> Any:
        rounded = {name: parameter.to(LOWER) for name, parameter in self.stage.named_parameters()}
        return functional_call(self.stage, rounded, (value,), kwargs)


# What an optimizer does.


@right(*_CLIPPED, experts=_SAME_EXPERTS)
class NormOfNorms(PlainSession):
    """Computes the norm of all gradients' norms, as ``torch.nn.utils.get_total_norm`` does."""

    def squares(self) -> float:
        grads = [one.grad for _, one in self.counted() if one.grad is not None]
        return float(get_total_norm(grads)) ** 2 / self.spec.replicas if grads else 0.0


@right(*_CLIPPED)
class NormByNeighbours(PlainSession):
    """Gathers the squared norms of all ranks, and sums them from the largest to the smallest."""

    def norm(self) -> float:
        own = torch.tensor(self.squares(), dtype=torch.float64)
        squares = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(squares, own)
        return math.sqrt(sum(sorted(map(float, squares), reverse=True)))


@right(*_CLIPPED)
class ClippedInPlace(PlainSession):
    """Clips the gradient tensors in place."""

    def clip(self, max_norm: float) -> float:
        norm = self.norm()
        for _, parameter in self.trained():
            if parameter.grad is not None:
                parameter.grad.mul_(self.factor(max_norm, norm))
        return norm


@right(*_CLIPPED, experts="dense")
class UpdatedByHand(PlainSession):
    """Subtracts the gradients from the parameters without an optimizer."""

    def update(self, lr: float) -> None:
        with torch.no_grad():
            for _, parameter in self.trained():
                if parameter.grad is not None:
                    parameter.sub_(lr * parameter.grad)


@right("ddp-tied")
class TiedBeforeReduction(PlainSession):
    """Sums the gradients of a tied weight in each replica before the reduction."""

    def reduce(self) -> None:
        super().add_tied()
        super().reduce()

    def add_tied(self) -> None:
        """Do nothing: this was already done."""


@right("batch-norm", "zero-bubble-clipped")
class ZeroedInPlace(PlainSession):
    """Sets gradients to zeros instead of None, as ``zero_grad(set_to_none=False)`` does."""

    def zero_grad(self) -> None:
        for _, parameter in self.trained():
            if parameter.grad is not None:
                parameter.grad.zero_()


@right("tied-clipped", "ddp-tied")
class TiedOnFirstRank(PlainSession):
    """Sums the gradients of a tied weight on its first rank, which sends the sum to the other."""

    def add_tied(self) -> None:
        if not self.spec.tied:
            return
        named = dict(self.named("named_parameters"))
        stages = [int(name.partition(".")[0]) for name in self.spec.tied]
        ranks = [self.rank_of(stage) for stage in stages]
        if ranks[0] == ranks[1]:
            return
        for own, (name, stage) in enumerate(zip(self.spec.tied, stages, strict=True)):
            if stage not in self.modules or (grad := named[name].grad) is None:
                continue
            came = torch.empty_like(grad)
            if own == 0:
                dist.recv(came, ranks[1])
                named[name].grad = grad + came
                dist.send(grad + came, ranks[1])
            else:
                dist.send(grad.contiguous(), ranks[0])
                dist.recv(came, ranks[0])
                named[name].grad = came
