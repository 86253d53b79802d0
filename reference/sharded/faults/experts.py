"""Faults of experts on several ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from gradconform.reference.sharded.column_row import squares
from gradconform.reference.sharded.experts import RoutedExperts, ShardedExperts

from .fault import fault


def reduce_all(parameters: Any, group: dist.ProcessGroup) -> None:
    """Sum gradients over the ranks of a group, where there are any."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)


@fault("gradients", "not_summed_over")
class RouterGradientNotSummed(RoutedExperts):
    """The gradient of the router is summed over no rank."""

    def finish(self, module: ShardedExperts) -> None:
        reduce_all(module.shared.parameters(), module.group)


@fault("gradients", "not_summed_over")
class SharedExpertNotSummed(RoutedExperts):
    """The gradient of the shared expert is summed over no rank."""

    def finish(self, module: ShardedExperts) -> None:
        reduce_all(module.router.parameters(), module.group)


@fault("gradients", "divided_by_size_of")
class ExpertGradientsDivided(RoutedExperts):
    """The gradient of the experts is divided by the number of expert ranks."""

    def finish(self, module: ShardedExperts) -> None:
        super().finish(module)
        if module.experts.grad is not None:
            module.experts.grad /= module.group.size()


@fault("gradients", "parts_summed")
class ExpertGradientsSummed(RoutedExperts):
    """The gradients of different experts are summed over the ranks."""

    def finish(self, module: ShardedExperts) -> None:
        super().finish(module)
        reduce_all([module.experts], module.group)


class _LocalCounts(ShardedExperts):
    def counted(self, counts: Tensor) -> Tensor:
        return counts * self.group.size()


@fault("outputs")
class BalanceOfOwnTokens(RoutedExperts):
    """The auxiliary loss counts the tokens of its own rank alone."""

    module = _LocalCounts


class _BalanceTwice(ShardedExperts):
    def balance(self, shares: Tensor, chosen: Tensor, tokens: int) -> Tensor:
        return super().balance(shares, chosen, tokens) * self.group.size()


@fault("outputs", "times_size_of")
class BalanceOfEachRank(RoutedExperts):
    """Each rank adds the auxiliary loss as if its tokens were all."""

    module = _BalanceTwice


class _WeightDetached(ShardedExperts):
    def weighted(self, weight: Tensor) -> Tensor:
        return weight.detach()


@fault("gradients")
class RouterWithoutLoss(RoutedExperts):
    """The router gets a gradient of the auxiliary loss alone."""

    module = _WeightDetached


@fault("norm", "norm_of_own_rank")
class NormOfOwnExperts(RoutedExperts):
    """The clipping norm includes the rank's own experts alone."""

    def grad_norm(self, module: ShardedExperts) -> float:
        return float(squares(list(module.parameters())).sqrt())


@fault("norm", "norm_mean_of_ranks")
class MeanOfNorms(RoutedExperts):
    """The clipping norm is the mean of the ranks' norms, although each has other experts."""

    def grad_norm(self, module: ShardedExperts) -> float:
        own = squares(list(module.parameters())).sqrt()
        dist.all_reduce(own, group=module.group)
        return float(own / module.group.size())
