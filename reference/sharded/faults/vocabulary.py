"""Faults of a vocabulary that is split over ranks."""

from __future__ import annotations

from torch import Tensor

from gradconform.reference.sharded.regions import summed
from gradconform.reference.sharded.vocabulary import WORDS, ShardedEnds, VocabularyLoss

from .fault import fault, region


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


@fault("outputs", "copies_unequal")
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
