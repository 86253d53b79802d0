"""Faults of a dense layer: exchanges, reductions and the clipping norm."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradconform.reference.sharded.column_row import ColumnRowMLP, ShardedMLP, squares
from gradconform.reference.sharded.overlapped import OverlappedMLP, OverlappedShardedMLP
from gradconform.reference.sharded.regions import gathered, own_part, scattered, summed

from .fault import as_it_is, fault, region


class _NotSummedInto(ShardedMLP):
    def enter(self, value: Tensor) -> Tensor:
        return super().enter(value) if self.sequence_parallel else value


@fault("input-gradients", "not_summed_over")
class InputGradientNotSummed(ColumnRowMLP):
    """The gradient of a column-parallel input is not summed over the ranks."""

    module = _NotSummedInto


class _SummedBothWays(ShardedMLP):
    def leave(self, value: Tensor) -> Tensor:
        if self.sequence_parallel:
            return super().leave(value)
        return region(value, lambda one: summed(one, self.group), lambda one: summed(one, self.group))


@fault("gradients", "times_size_of")
class OutputGradientSummed(ColumnRowMLP):
    """The all-reduce after a row-parallel layer is differentiated as an all-reduce."""

    module = _SummedBothWays


class _DividedBack(ShardedMLP):
    def leave(self, value: Tensor) -> Tensor:
        if self.sequence_parallel:
            return super().leave(value)
        return region(value, lambda one: summed(one, self.group), lambda one: one / self.group.size())


@fault("gradients", "divided_by_size_of")
class OutputGradientDivided(ColumnRowMLP):
    """The backward of the all-reduce divides by the number of ranks."""

    module = _DividedBack


class _OwnPartBack(ShardedMLP):
    def enter(self, value: Tensor) -> Tensor:
        if not self.sequence_parallel:
            return super().enter(value)
        return region(value, lambda one: gathered(one, self.group, 1), lambda one: own_part(one, self.group, 1))


@fault("input-gradients", "not_summed_over")
class GatherWithoutReduceScatter(ColumnRowMLP):
    """The backward of the all-gather takes this rank's part instead of a reduce-scatter."""

    module = _OwnPartBack


class _SummedAgainBack(ShardedMLP):
    def leave(self, value: Tensor) -> Tensor:
        if not self.sequence_parallel:
            return super().leave(value)
        return region(
            value,
            lambda one: scattered(one, self.group, 1),
            lambda one: summed(gathered(one, self.group, 1), self.group),
        )


@fault("gradients", "times_size_of")
class GatheredGradientSummed(ColumnRowMLP):
    """The gathered gradient of a reduce-scatter is summed once more."""

    module = _SummedAgainBack


class _NextPart(ShardedMLP):
    def leave(self, value: Tensor) -> Tensor:
        if not self.sequence_parallel:
            return super().leave(value)
        size = value.shape[1] // self.group.size()
        return super().leave(value.roll(-size, 1))


@fault("outputs", "part_of_other_rank")
class NextRanksPositions(ColumnRowMLP):
    """Each rank gets the positions of the next rank."""

    module = _NextPart


@fault("gradients", "not_summed_over")
class SequenceGradientsNotSummed(ColumnRowMLP):
    """With sequence parallelism, the gradients of norm and bias are summed over no rank."""

    def finish(self, module: ShardedMLP) -> None:
        return


@fault("gradients", "divided_by_size_of")
class SequenceGradientsAveraged(ColumnRowMLP):
    """The gradients of norm and bias are averaged over the ranks."""

    def finish(self, module: ShardedMLP) -> None:
        super().finish(module)
        for parameter in module.sequence_parameters:
            if parameter.grad is not None:
                parameter.grad /= module.group.size()


@fault("gradients", "times_size_of")
class ReplicatedGradientsSummed(ColumnRowMLP):
    """The gradients of replicated parameters are summed, although every rank has the whole one."""

    def finish(self, module: ShardedMLP) -> None:
        for parameter in (*module.norm.parameters(), module.down.bias):
            if parameter.grad is not None:
                parameter.grad = summed(parameter.grad, module.group)


@fault("gradients", "one_rank_has_it")
class ReducedToOneRank(ColumnRowMLP):
    """The gradients of norm and bias are reduced to rank 0 alone."""

    def finish(self, module: ShardedMLP) -> None:
        for parameter in module.sequence_parameters:
            if parameter.grad is not None:
                total = summed(parameter.grad, module.group)
                parameter.grad = total if module.group.rank() == 0 else parameter.grad


@fault("gradients", "rank_missing")
class BroadcastInsteadOfSum(ColumnRowMLP):
    """The gradients of norm and bias are broadcast from rank 0 instead of summed."""

    def finish(self, module: ShardedMLP) -> None:
        for parameter in module.sequence_parameters:
            if parameter.grad is not None:
                dist.broadcast(parameter.grad, dist.get_global_rank(module.group, 0), group=module.group)


@fault("copies", "copies_differ")
class CopiesRoundedApart(ColumnRowMLP):
    """One rank computes the last bit of a replicated gradient in another way."""

    def finish(self, module: ShardedMLP) -> None:
        super().finish(module)
        grad = module.norm.weight.grad
        if module.group.rank() == 1 and grad is not None:
            grad.copy_(torch.nextafter(grad, torch.full_like(grad, float("inf"))))


class _Counting(ShardedMLP):
    finished = 0


@fault("copies", "copies_drift")
class FinishedOnce(ColumnRowMLP):
    """The reductions run after the first step only."""

    module = _Counting

    def finish(self, module: ShardedMLP) -> None:
        counting: Any = module
        counting.finished += 1
        if counting.finished == 1:
            super().finish(module)


@fault("norm", "norm_counts_copies")
class NormCountsCopies(ColumnRowMLP):
    """The clipping norm sums the replicated parameters of all ranks."""

    def grad_norm(self, module: ShardedMLP) -> float:
        return float(summed(squares(list(module.parameters())), module.group).sqrt())


@fault("norm", "norm_of_own_rank")
class NormOfOwnRank(ColumnRowMLP):
    """The clipping norm is that of the rank's own parts."""

    def grad_norm(self, module: ShardedMLP) -> float:
        return float(squares(list(module.parameters())).sqrt())


@fault("norm", "norm_leaves_out")
class NormWithoutBias(ColumnRowMLP):
    """The clipping norm leaves out the bias of the row-parallel layer."""

    def grad_norm(self, module: ShardedMLP) -> float:
        split = [module.up.weight, module.up.bias, module.down.weight]
        whole = squares(list(module.norm.parameters()))
        return float((summed(squares(split), module.group) + whole).sqrt())


@fault("norm", "norm_counts")
class NormCountsBiasAgain(ColumnRowMLP):
    """The clipping norm sums one replicated parameter over the ranks."""

    def grad_norm(self, module: ShardedMLP) -> float:
        split = [module.up.weight, module.up.bias, module.down.weight, module.down.bias]
        whole = squares(list(module.norm.parameters()))
        return float((summed(squares(split), module.group) + whole).sqrt())


@fault("norm", "norm_of_one_part")
class NormOfFirstBias(ColumnRowMLP):
    """The clipping norm has the first rank's part of a bias that is split over ranks."""

    def grad_norm(self, module: ShardedMLP) -> float:
        split = [module.up.weight, module.down.weight]
        split += [module.up.bias] if module.group.rank() == 0 else []
        whole = squares([*module.norm.parameters(), module.down.bias])
        return float((summed(squares(split), module.group) + whole).sqrt())


class _SumOfOwnInput(OverlappedShardedMLP):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(region(value, as_it_is, lambda one: one / self.group.size()))


@fault("input-gradients", "divided_by_size_of")
class AsynchronousMean(OverlappedMLP):
    """The gradient that is summed during the backward is divided by the number of ranks."""

    module = _SumOfOwnInput
