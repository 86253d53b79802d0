"""Faults of fused heads."""

from __future__ import annotations

from torch import Tensor

from gradconform.reference.sharded.fused import FusedHeads, ShardedHeads
from gradconform.reference.sharded.regions import summed

from .fault import fault, region


class _HeadsNotSummed(ShardedHeads):
    def enter(self, value: Tensor) -> Tensor:
        return value


@fault("input-gradients", "not_summed_over")
class HeadsInputNotSummed(FusedHeads):
    """The gradient of the heads' input is not summed over the ranks."""

    module = _HeadsNotSummed


class _FirstRankOnly(ShardedHeads):
    def leave(self, value: Tensor) -> Tensor:
        return region(value, lambda one: summed(one, self.group), lambda one: one * (self.group.rank() == 0))


@fault("gradients", "one_rank_has_it")
class OutputGradientOnOneRank(FusedHeads):
    """The gradient of the summed output reaches rank 0 alone."""

    module = _FirstRankOnly
