"""Training steps whose ranks share experts, sequences or what data use, each with one mistake of a project.

Each class is the plain runtime of the kit with one thing done as a project did it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch, StepSpec

from .rebuilt import StepTarget


class ExpertsDoubled(PlainSession):
    """pytorch-160285: gradients of experts are sums over the tokens of all replicas, whose losses are means."""

    def of_experts(self, name: str, grad: Tensor) -> Tensor:
        """Return the sum over replicas of gradients of their mean losses."""
        return super().of_experts(name, grad) * self.spec.replicas


class ExpertsDividedByCopies(PlainSession):
    """Megatron-LM-5956: experts are divided by the ranks that have the same ones, of which there is one."""

    #: The number of ranks that have the same experts.
    copies = 1

    def weight(self, batch: Batch, chunk: Batch) -> float:
        """Return the weight of a loss in a sum over replicas, which the reduction divides."""
        return super().weight(batch, chunk) * self.spec.replicas

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        """Return the same for auxiliary losses."""
        return super().auxiliary_weight(batch, chunk) * self.spec.replicas

    def over_replicas(self, value: Tensor) -> Tensor:
        """Return the mean over replicas."""
        return super().over_replicas(value) / self.spec.replicas

    def of_experts(self, name: str, grad: Tensor) -> Tensor:
        """Return the mean over the ranks that have the same experts."""
        return super().of_experts(name, grad) / self.copies


class ExpertsOfShrunkGroup(PlainSession):
    """Megatron-LM-7165: another group of ranks takes over a part of the mean, but not that of experts."""

    #: How many of the replicas are left in the group that scales all gradients first.
    left = 1

    def reduce(self) -> None:
        """Sum gradients, scaled by the group that is left; then average over the others."""
        scale = self.spec.replicas / self.left
        for _, parameter in self.trained():
            parameter.grad = None if parameter.grad is None else parameter.grad * scale
        super().reduce()
        for name, parameter in self.trained():
            if parameter.grad is not None and name not in self.divided:
                parameter.grad = parameter.grad / scale


class ExpertsTakenForCopies(PlainSession):
    """Megatron-LM-5916: experts count in the norm on the first tensor rank alone, as if all had the same ones."""

    def squares(self) -> float:
        """Return the sum of squares of this rank, without experts that are taken for copies."""
        own = super().squares()
        if self.spec.tensor_rank:
            own -= sum(
                float(one.grad.double().square().sum()) / self.holders(name)
                for name, one in self.counted()
                if one.grad is not None and ".experts." in name
            )
        return own


class AuxiliaryByOwnTokens(PlainSession):
    """Megatron-LM-7452, finding 3: a second loss is a mean over the tokens of one replica, and then over replicas."""

    def positions(self, batch: Batch) -> float:
        """Return the divisor that gives the mean of the replicas' means."""
        return float(batch.positions() * self.spec.replicas)


class MeanOfOwnTokens(PlainSession):
    """Megatron-LM-7452, finding 9: each rank of a sequence divides by its own counted tokens."""

    def tokens_of(self, target: Tensor) -> Tensor:
        """Return the divisor that gives the mean of the ranks' means."""
        return self.spec.counts(target).sum().clamp(min=1) * self.spec.replicas


class UnusedNotReduced(PlainSession):
    """Automodel-3540: ranks leave parameters that they did not use out of the reduction."""

    def complete(self) -> None:
        """Fill in no zeros, and set aside the gradients of parameters that some replica did not use."""
        named = sorted(self.named("named_parameters"), key=lambda one: one[0])
        used = torch.tensor([one.grad is not None for _, one in named], dtype=torch.int64, device=self.spec.device)
        by_all = torch.stack(self.of_replicas(used)).all(0).tolist()
        self.aside = {one: one.grad for (_, one), all_did in zip(named, by_all, strict=True) if not all_did}
        for parameter in self.aside:
            parameter.grad = None

    def reduce(self) -> None:
        """Reduce the gradients that every replica has."""
        super().reduce()
        for parameter, grad in self.aside.items():
            parameter.grad = grad


class RouterWithoutGradient(PlainSession):
    """Automodel-2995: the weights of experts leave the graph, so a router learns from its auxiliary loss alone."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Change the forward of every router."""
        super().__init__(modules, spec)
        for _, router in self.own_modules(f"{name.rpartition('.')[0]}.router" for name in spec.experts):
            vars(router)["forward"] = partial(_outside_graph, type(router).forward, router)


def _outside_graph(forward: Any, router: nn.Module, tokens: Tensor, affinity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    tokens, weights, chosen = forward(router, tokens, affinity)
    return tokens, weights.detach(), chosen


experts_doubled = StepTarget(ExpertsDoubled)
experts_divided_by_copies = StepTarget(ExpertsDividedByCopies)
experts_of_shrunk_group = StepTarget(ExpertsOfShrunkGroup)
experts_taken_for_copies = StepTarget(ExpertsTakenForCopies)
auxiliary_by_own_tokens = StepTarget(AuxiliaryByOwnTokens)
mean_of_own_tokens = StepTarget(MeanOfOwnTokens)
unused_not_reduced = StepTarget(UnusedNotReduced)
router_without_gradient = StepTarget(RouterWithoutGradient)
