"""Wrong sharded stages: each is a right one with one change. It names a kind of check that fails, and its cause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .column_row import ColumnRowMLP, ShardedMLP, squares
from .context import ContextAttention, ShardedAttention
from .experts import RoutedExperts, ShardedExperts
from .fused import FusedHeads, ShardedHeads
from .overlapped import OverlappedMLP, OverlappedShardedMLP
from .regions import gathered, own_part, scattered, summed
from .token_mean import ShardedClassifier, TokenMean
from .vocabulary import WORDS, ShardedEnds, VocabularyLoss

#: The faults by name: the kind of check that fails, and the kind of its cause, empty if none is named.
FAULTS: dict[str, tuple[str, str]] = {}

_S = TypeVar("_S", bound=type)


def fault(kind: str, cause: str = "") -> Callable[[_S], _S]:
    """Add a stage to the faults."""

    def added(stage: _S) -> _S:
        FAULTS[stage.__name__] = (kind, cause)
        return stage

    return added


class _Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grads[0]), None, None


def region(value: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``there`` of a tensor; its backward applies ``back`` to the gradient."""
    found: Tensor = _Region.apply(value, there, back)  # type: ignore[no-untyped-call] # so is torch's
    return found


def as_it_is(value: Tensor) -> Tensor:
    """Return the value unchanged."""
    return value.view_as(value)


# A dense layer.


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


class _SumOfOwnInput(OverlappedShardedMLP):
    def forward(self, value: Tensor) -> Tensor:
        return super().forward(region(value, as_it_is, lambda one: one / self.group.size()))


@fault("input-gradients", "divided_by_size_of")
class AsynchronousMean(OverlappedMLP):
    """The gradient that is summed during the backward is divided by the number of ranks."""

    module = _SumOfOwnInput


# A vocabulary.


class _MeanOfOwnWords(ShardedEnds):
    def mean_score(self, shifted: Tensor) -> Tensor:
        return shifted.sum(-1) / self.words


@fault("outputs", "not_summed_over")
class SmoothedOverOwnWords(VocabularyLoss):
    """Label smoothing takes a rank's words for the whole vocabulary."""

    module = _MeanOfOwnWords


class _OwnWordsOnly(ShardedEnds):
    def over_words(self, value: Tensor) -> Tensor:
        return value


@fault("outputs")
class SoftmaxOverOwnWords(VocabularyLoss):
    """The softmax is over a rank's words alone."""

    module = _OwnWordsOnly


class _HiddenNotSummed(ShardedEnds):
    def to_head(self, value: Tensor) -> Tensor:
        return value


@fault("gradients", "not_summed_over")
class HiddenGradientNotSummed(VocabularyLoss):
    """The gradient of the head's input is not summed over the ranks."""

    module = _HiddenNotSummed


class _SmoothingSummedBack(ShardedEnds):
    def mean_score(self, shifted: Tensor) -> Tensor:
        both = region(shifted.sum(-1), lambda one: summed(one, self.group), lambda one: summed(one, self.group))
        return both / WORDS


@fault("gradients")
class SmoothingGradientSummed(VocabularyLoss):
    """The gradient of the smoothing term is summed over the ranks again."""

    module = _SmoothingSummedBack


class _AllTokens(ShardedEnds):
    def reduced(self, losses: Tensor, labels: Tensor) -> Tensor:
        return losses.mean() if self.reduction == "mean" else losses.sum()


@fault("gradients", "scaled")
class IgnoredTokensCounted(VocabularyLoss):
    """The mean divides by all tokens, also the ignored ones."""

    module = _AllTokens


class _TiedDetached(ShardedEnds):
    def embedded(self, tokens: Tensor) -> Tensor:
        found = super().embedded(tokens)
        return found.detach() if self.head.weight is self.embedding.weight else found


@fault("gradients", "uses_missing")
class TiedEmbeddingWithoutGradient(VocabularyLoss):
    """A tied embedding gets the gradient of the head alone."""

    module = _TiedDetached


# A sequence.


@fault("gradients", "not_summed_over")
class ContextGradientsNotSummed(ContextAttention):
    """Parameter gradients are summed over no context rank."""

    def finish(self, module: ShardedAttention) -> None:
        return


@fault("gradients", "divided_by_size_of")
class ContextGradientsAveraged(ContextAttention):
    """Parameter gradients are averaged over the context ranks."""

    def finish(self, module: ShardedAttention) -> None:
        super().finish(module)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= module.group.size()


class _NotPassedBack(ShardedAttention):
    def passed(self, pair: Tensor) -> Tensor:
        return super().passed(pair.detach())


@fault("input-gradients", "not_summed_over")
class RingWithoutBackward(ContextAttention):
    """Keys and values of other ranks pass no gradient back."""

    module = _NotPassedBack


# Experts.


def _reduced(parameters: Any, group: dist.ProcessGroup) -> None:
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)


@fault("gradients", "not_summed_over")
class RouterGradientNotSummed(RoutedExperts):
    """The gradient of the router is summed over no rank."""

    def finish(self, module: ShardedExperts) -> None:
        _reduced(module.shared.parameters(), module.group)


@fault("gradients", "not_summed_over")
class SharedExpertNotSummed(RoutedExperts):
    """The gradient of the shared expert is summed over no rank."""

    def finish(self, module: ShardedExperts) -> None:
        _reduced(module.router.parameters(), module.group)


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
        _reduced([module.experts], module.group)


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


# A mean over tokens, on a mesh of two dimensions.


class _OwnMean(ShardedClassifier):
    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        return losses / valid.clamp(min=1) / self.dp.size()


@fault("gradients", "mean_of_ranks")
class MeanOfRanks(TokenMean):
    """Each rank divides by its own tokens, and the means are averaged."""

    module = _OwnMean


@fault("gradients", "not_summed_over")
class ReplicasNotSummed(TokenMean):
    """Gradients are summed over no replica."""

    def finish(self, module: ShardedClassifier) -> None:
        return


@fault("gradients", "divided_by_size_of")
class ReplicasAveraged(TokenMean):
    """Gradients of a mean over all tokens are averaged over the replicas once more."""

    def finish(self, module: ShardedClassifier) -> None:
        super().finish(module)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= module.dp.size()


@fault("gradients", "summed_over_other")
class SummedOverWrongGroup(TokenMean):
    """Gradients are summed over the tensor ranks instead of the replicas."""

    mesh = {"dp": (2,), "tp": (2,)}

    def finish(self, module: ShardedClassifier) -> None:
        _reduced(module.parameters(), module.tp)


@fault("gradients", "parts_summed")
class SummedOverAllRanks(TokenMean):
    """Gradients are summed over all ranks instead of the replicas."""

    mesh = {"dp": (2,), "tp": (2,)}

    def finish(self, module: ShardedClassifier) -> None:
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)


class _CountedOverTensorRanks(ShardedClassifier):
    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        return losses / summed(valid, self.tp).clamp(min=1)


@fault("gradients", "mean_of_ranks")
class TokensCountedOverWrongGroup(TokenMean):
    """The tokens are counted over the tensor ranks instead of the replicas."""

    mesh = {"dp": (2,), "tp": (2,)}
    module = _CountedOverTensorRanks


# Heads.


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
