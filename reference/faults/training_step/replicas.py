"""Faults of the reduction over replicas, and of shards."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch, Kept, Shard

from .registry import each, fault


@fault("ddp", "not_reduced_nor_divided")
class NeverReduced(PlainSession):
    """Leaves each replica with the mean of its own gradients."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return value * self.spec.replicas


@fault("ddp", "not_reduced")
class OnlyDivided(PlainSession):
    """Divides by the number of replicas and never reduces."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return value


@fault("ddp", "not_reduced")
class FirstReplicaWins(PlainSession):
    """Copies the gradients of the first replica to all others."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value if self.spec.replica == 0 else torch.zeros_like(value))


@fault("ddp", "reduced_early")
class ReducedBeforeLast(PlainSession):
    """Reduces before the last micro-batch, whose gradients each replica adds for itself."""

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        if mb == self.spec.microbatches - 1:
            super().reduce()
        return super().microbatch(batch, chunk, mb)

    def reduce(self) -> None:
        """It is done already."""


@fault("ddp", "reduced_early_only")
class LastLeftOut(PlainSession):
    """Reduces before the last micro-batch, and drops its gradients."""

    def chunks(self, batch: Batch) -> list[Batch]:
        return super().chunks(batch)[:-1]

    def reported_losses(self, losses: list[Tensor | None]) -> list[Tensor] | None:
        told = super().reported_losses(losses)
        return told and [*told, told[-1]] if len(losses) < self.spec.microbatches else told


@fault("fsdp-accumulated", "multiplied")
class ReducedTwice(PlainSession):
    """Reduces gradients that are already reduced."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(super().over_replicas(value))


@fault("fsdp-accumulated", "earlier_reduced_again")
class AccumulatedReducedAgain(PlainSession):
    """Reduces the sum of all steps at the end of each one, so that earlier steps are reduced again."""

    def kept(self) -> dict[nn.Parameter, Tensor]:
        return {}


@fault("ddp-unreduced", "only_this_step")
class SharesLost(PlainSession):
    """Drops unreduced gradients when the next step begins."""

    def step(self, batch: Batch) -> list[Tensor] | None:
        self.shares = {}
        return super().step(batch)


@fault("ddp-unreduced", "earlier_reduced_again")
class SharesReducedTwice(PlainSession):
    """Reduces gradients that must stay unreduced, and reduces them again with the next step."""

    def accumulate(self, batch: Batch) -> list[Tensor] | None:
        losses = super().accumulate(batch)
        self.shares = {parameter: self.over_replicas(grad) for parameter, grad in self.shares.items()}
        return losses


@fault("ddp-unreduced", "earlier_not_reduced")
class SharesNeverReduced(PlainSession):
    """Adds unreduced gradients after the reduction of the next step."""

    def step(self, batch: Batch) -> list[Tensor] | None:
        shares, self.shares = self.shares, {}
        losses = super().step(batch)
        self.add(shares)
        return losses


@fault("ddp-tied", "not_reduced")
class TiedNotReduced(PlainSession):
    """Sums the gradients of a tied weight in each replica, and omits them from the reduction."""

    def reduce(self) -> None:
        super().add_tied()
        named = dict(self.named("named_parameters"))
        summed = {name: named[name].grad for name in self.spec.tied if name in named}
        super().reduce()
        for name, grad in summed.items():
            named[name].grad = grad

    def add_tied(self) -> None:
        """It is done already."""


@fault("ddp-tied", "use_of_replica_missing")
class UseOfTheLastReplicaLost(PlainSession):
    """Reduces the second use of a tied weight without the last replica's gradient."""

    def reduce(self) -> None:
        if self.spec.replica == self.spec.replicas - 1:
            each(self, lambda name, grad: grad * 0.0 if name in self.spec.tied[1:] else grad)
        super().reduce()


@fault("ddp-tied", "use_not_reduced")
class OneUseNotReduced(PlainSession):
    """Reduces the first use of a tied weight, and leaves the second use as each replica has it."""

    def reduce(self) -> None:
        named = dict(self.named("named_parameters"))
        kept = {name: named[name].grad for name in self.spec.tied[1:] if name in named}
        super().reduce()
        for name, grad in kept.items():
            named[name].grad = grad


@fault("ddp")
class HooksNotFired(PlainSession):
    """Reduces only matrices: the hooks of one-dimensional parameters are never called."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value) if value.dim() > 1 else value * self.spec.replicas


@fault("ddp")
class FirstBucketOnly(PlainSession):
    """Reduces the first half of the parameters and never sends the second bucket."""

    def reduce(self) -> None:
        names = sorted(name for name, _ in self.trained())
        half = set(names[: len(names) // 2])
        for name, parameter in sorted(self.trained(), key=lambda one: one[0]):
            if name in half and parameter.grad is not None:
                parameter.grad = self.over_replicas(parameter.grad)


@fault("ddp", "replica_missing")
class LastReplicaLeftOut(PlainSession):
    """Omits the last replica from the sum."""

    def over_replicas(self, value: Tensor) -> Tensor:
        left_out = self.spec.replicas > 1 and self.spec.replica == self.spec.replicas - 1
        return super().over_replicas(torch.zeros_like(value) if left_out else value)


@fault("ddp")
class ReplicasApart(PlainSession):
    """Sums in another order on each replica with coarse rounding, so that replicas diverge."""

    def over_replicas(self, value: Tensor) -> Tensor:
        total = super().over_replicas(value)
        return total * (1.0 + 2.0**-22 * self.spec.replica)


@fault("ddp")
class ReducedInHalfPrecision(PlainSession):
    """Reduces in float16."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value.half()).to(value.dtype)


@fault("fsdp-accumulated")
class ShardsSwapped(PlainSession):
    """Gives each shard to the other replica."""

    def own(self, grad: Tensor | None) -> Kept:
        kept = super().own(grad)
        each = -(-len(grad) // self.spec.replicas) if grad is not None else 0
        if isinstance(kept, Shard) and each * self.spec.replicas == kept.rows:
            return Shard(kept.value, kept.rows - kept.start - each, kept.rows)
        return kept


@fault("fsdp-accumulated")
class StaleShard(PlainSession):
    """Keeps the shard of the first step, so that later gradients are not seen."""

    def param_grads(self) -> dict[str, Kept]:
        now = super().param_grads()
        if not hasattr(self, "first"):
            self.first = {name: copy.deepcopy(one) if isinstance(one, Shard) else one for name, one in now.items()}
        return self.first
