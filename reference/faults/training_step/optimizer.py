"""Faults of tied weights, of the norm, of clipping and of the step of the optimizer."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import nn

from gradconform.reference.runtime import PlainSession

from .registry import each, fault


@fault("tied-clipped", "uses_missing")
class TiedNotSummed(PlainSession):
    """Leaves each rank with the gradient of its own use of a tied weight."""

    def add_tied(self) -> None:
        """Nothing is added."""


@fault("tied-clipped", "multiplied")
class TiedSummedTwice(PlainSession):
    """Sums the gradients of a tied weight twice."""

    def add_tied(self) -> None:
        super().add_tied()
        super().add_tied()


@fault("tied-clipped", "divided")
class TiedAveraged(PlainSession):
    """Averages the two gradients of a tied weight."""

    def add_tied(self) -> None:
        super().add_tied()
        each(self, lambda name, grad: grad / 2.0 if name in self.spec.tied else grad)


@fault("tied-clipped")
class TiedOnFirstAlone(PlainSession):
    """Sums the gradients of a tied weight on its first rank only."""

    def add_tied(self) -> None:
        before = {name: parameter.grad.clone() for name, parameter in self.trained() if parameter.grad is not None}
        super().add_tied()
        each(self, lambda name, grad: before[name] if name in self.spec.tied[1:] else grad)


@fault("zero-bubble-clipped", "norm_of_stages")
class NormOfOwnStages(PlainSession):
    """Computes the norm of each rank's own stages only."""

    def norm(self) -> float:
        return math.sqrt(self.squares())


@fault("zero-bubble-clipped", "norm_without_stages")
class NormWithoutLastStage(PlainSession):
    """Omits the last stage from the norm."""

    def counted(self) -> list[tuple[str, nn.Parameter]]:
        last = f"{self.spec.stages - 1}."
        return [(name, parameter) for name, parameter in super().counted() if not name.startswith(last)]


@fault("tied-clipped", "norm_of_tied")
class NormCountsTiedTwice(PlainSession):
    """Counts a tied weight in the norm on each of its ranks."""

    def counted(self) -> list[tuple[str, nn.Parameter]]:
        return self.trained()


@fault("clipped two-replicas", "norm_of_replicas")
class NormCountsReplicas(PlainSession):
    """Counts the gradients of every replica in the norm."""

    def norm(self) -> float:
        return super().norm() * math.sqrt(self.spec.replicas)


@fault("zero-bubble-clipped")
class NormOfLargest(PlainSession):
    """Uses the largest element as the norm."""

    def norm(self) -> float:
        most = max(float(one.grad.abs().max()) for _, one in self.trained() if one.grad is not None)
        found = torch.tensor(most)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found)


@fault("zero-bubble-clipped", "clipped_by_other_norm")
class ClippedBeforeReduction(PlainSession):
    """Clips each rank by the norm of its own gradients, and returns the norm of all."""

    def factor(self, max_norm: float, norm: float) -> float:
        return super().factor(max_norm, math.sqrt(self.own_squares))

    def clip(self, max_norm: float) -> float:
        self.own_squares = self.squares()
        return super().clip(max_norm)


@fault("zero-bubble-clipped", "not_clipped")
class NeverClipped(PlainSession):
    """Returns the norm and clips nothing."""

    def factor(self, max_norm: float, norm: float) -> float:
        return 1.0


@fault("zero-bubble-clipped")
class ClippedByValue(PlainSession):
    """Clips each element at the maximum norm."""

    def clip(self, max_norm: float) -> float:
        norm = self.norm()
        each(self, lambda _, grad: grad.clamp(-max_norm / 8, max_norm / 8))
        return norm


@fault("zero-bubble-clipped", "not_clipped")
class OneStageNotClipped(PlainSession):
    """Clips all stages but the first."""

    def clip(self, max_norm: float) -> float:
        before = {name: one.grad.clone() for name, one in self.trained() if one.grad is not None}
        norm = super().clip(max_norm)
        each(self, lambda name, grad: before[name] if name.startswith("0.") else grad)
        return norm


@fault("zero-bubble-clipped")
class UpdatedTwice(PlainSession):
    """Makes two steps of SGD instead of one."""

    def update(self, lr: float) -> None:
        super().update(lr)
        super().update(lr)


@fault("zero-bubble-clipped")
class LastStageNotUpdated(PlainSession):
    """Does not update the parameters of the last stage."""

    def update(self, lr: float) -> None:
        before = {name: value.detach().clone() for name, value in self.named("named_parameters")}
        super().update(lr)
        with torch.no_grad():
            for name, value in self.named("named_parameters"):
                if name.startswith(f"{self.spec.stages - 1}."):
                    value.copy_(before[name])
