"""Faults of parameters that data do not use everywhere, and of auxiliary losses over tokens."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch

from .registry import each, fault


class _Uses(PlainSession):
    """Knows in each reduction how many replicas used each parameter."""

    users: Mapping[str, int] = {}

    def complete(self) -> None:
        named = sorted(self.named("named_parameters"), key=lambda one: one[0])
        used = torch.tensor([one.grad is not None for _, one in named], dtype=torch.int64)
        counted = torch.stack(self.of_replicas(used)).sum(0).tolist()
        self.users = {name: users for (name, _), users in zip(named, counted, strict=True)}
        super().complete()


@fault("used-on-one-replica", "never_accumulated")
class UnusedLeftUnreduced(_Uses):
    """Reduces only gradients that every replica has."""

    def complete(self) -> None:
        super().complete()
        self.left = {
            name: one.grad if one.grad is not None and one.grad.any() else None
            for name, one in self.trained()
            if self.users[name] < self.spec.replicas
        }

    def reduce(self) -> None:
        super().reduce()
        each(self, self.left.get)


@fault("used-on-one-replica", "never_accumulated")
class UnusedSomewhereDropped(_Uses):
    """Drops the gradient of a parameter that some replica did not use."""

    def reduce(self) -> None:
        super().reduce()
        each(self, lambda name, grad: grad if self.users[name] == self.spec.replicas else None)


@fault("used-on-one-replica", "multiplied")
class AveragedOverUsers(_Uses):
    """Averages a gradient over the replicas that used the parameter."""

    def reduce(self) -> None:
        super().reduce()
        each(self, lambda name, grad: grad * (self.spec.replicas / self.users[name]))


@fault("used-on-one-replica", "zero")
class UserOverwritten(_Uses):
    """Copies the gradients of the last replica to all others if not all used the parameter."""

    def complete(self) -> None:
        super().complete()
        last = self.spec.replica == self.spec.replicas - 1
        each(self, lambda name, grad: grad if last or self.users[name] == self.spec.replicas else 0.0 * grad)


@fault("used-in-one-microbatch", "not_reduced")
class ReducedIfLastUsesIt(PlainSession):
    """Reduces a gradient only if the last micro-batch used its parameter, as a hook of its backward does."""

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        before = {name: parameter.grad.clone() for name, parameter in self.trained() if parameter.grad is not None}
        loss = super().microbatch(batch, chunk, mb)
        now = {name: parameter.grad for name, parameter in self.trained()}
        self.same = {name for name, grad in before.items() if grad.equal(now[name])}  # type: ignore[arg-type] # it is kept
        return loss

    def reduce(self) -> None:
        left = {name: parameter.grad for name, parameter in self.trained() if name in self.same}
        super().reduce()
        each(self, left.get)


@fault("used-in-one-microbatch", "multiplied")
class AveragedOverMicrobatchesThatUseIt(PlainSession):
    """Divides a gradient by the number of micro-batches that used the parameter instead of all."""

    def passes(self, batch: Batch) -> list[Tensor | None]:
        self.used: dict[str, int] = {}
        return super().passes(batch)

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        before = {name: parameter.grad.clone() for name, parameter in self.trained() if parameter.grad is not None}
        loss = super().microbatch(batch, chunk, mb)
        for name, parameter in self.trained():
            if parameter.grad is not None and not (name in before and parameter.grad.equal(before[name])):
                self.used[name] = self.used.get(name, 0) + 1
        return loss

    def reduce(self) -> None:
        each(self, lambda name, grad: grad * (self.spec.microbatches / self.used[name]))
        super().reduce()


@fault("used-in-first-step", "cleared")
class UnusedCleared(PlainSession):
    """Clears the gradient of a parameter that a step did not use."""

    def add(self, before: Mapping[nn.Parameter, Tensor]) -> None:
        super().add({parameter: grad for parameter, grad in before.items() if parameter.grad is not None})


@fault("used-in-first-step", "multiplied")
class UnusedReducedAgain(PlainSession):
    """Reduces the earlier gradient of a parameter that a step did not use."""

    def add(self, before: Mapping[nn.Parameter, Tensor]) -> None:
        again = {
            parameter: self.over_replicas(grad) if parameter.grad is None else grad
            for parameter, grad in before.items()
        }
        super().add(again)


@fault("ddp-auxiliary-tokens", "auxiliary_scaled")
class AuxiliaryByTokensOfLoss(PlainSession):
    """Divides an auxiliary loss by the tokens that count in the loss of the last stage."""

    def positions(self, batch: Batch) -> float:
        return self.tokens(batch)


@fault("ddp-auxiliary-tokens", "auxiliary_of_replicas")
class AuxiliaryByOwnTokens(PlainSession):
    """Divides an auxiliary loss by the tokens of one replica, and averages over replicas."""

    def positions(self, batch: Batch) -> float:
        return float(batch.positions() * self.spec.replicas)


@fault("ddp-auxiliary-tokens", "auxiliary_of_microbatches")
class AuxiliaryByTokensOfMicrobatch(PlainSession):
    """Divides an auxiliary loss by the tokens of its micro-batch, and averages over micro-batches."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        if self.spec.reduction != "tokens":
            return super().auxiliary_weight(batch, chunk)
        return 1.0 / (chunk.positions() * self.spec.microbatches * self.spec.replicas)
