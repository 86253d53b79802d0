"""Faults of sequences that replicas share: what attention sees, what returns to keys, and what means divide by."""

from __future__ import annotations

import torch
from torch import Tensor

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch

from .registry import fault


@fault("context", "mean_of_replicas")
class ByTokensOfRank(PlainSession):
    """Divides by the tokens that count on one rank, and averages over the ranks that share sequences."""

    def tokens(self, batch: Batch) -> float:
        if self.spec.context == "whole":
            return super().tokens(batch)
        return float(max(1, batch.tokens(self.spec.counts)) * self.spec.replicas)


@fault("half-ignored", "divided")
class ByTokensOfRankAlone(PlainSession):
    """Averages over the tokens of each rank, one of which counts none, and then over ranks."""

    def tokens(self, batch: Batch) -> float:
        return float(max(1, batch.tokens(self.spec.counts)) * self.spec.replicas)


@fault("mean-of-halves", "mean_of_replicas")
class MeanOfRanks(PlainSession):
    """Averages a micro-batch over the tokens of each rank, and then over ranks."""

    def tokens_of(self, target: Tensor) -> Tensor:
        return self.spec.counts(target).sum().clamp(min=1) * self.spec.replicas


@fault("mean-of-halves", "divided")
class RanksCountedAsReplicas(PlainSession):
    """Divides by the number of ranks that share sequences, as if each had micro-batches of its own."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return super().weight(batch, chunk) / self.spec.replicas


@fault("context", "multiplied")
class TokensOfRankAlone(PlainSession):
    """Divides by the mean number of tokens of a rank."""

    def tokens(self, batch: Batch) -> float:
        return super().tokens(batch) / self.spec.replicas


@fault("context", "not_reduced")
class OwnLossReturned(PlainSession):
    """Returns the losses of this rank's tokens only."""

    def reported_losses(self, losses: list[Tensor | None]) -> list[Tensor] | None:
        return [loss.detach() for loss in losses if loss is not None] if self.spec.is_last else None


@fault("context", "not_reduced")
class SharesNotReduced(PlainSession):
    """Leaves each rank with the gradients of its own positions."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return value


@fault("context", "attends_to_own_part")
class OwnKeysAlone(PlainSession):
    """Attends to the positions of this rank only."""

    def mask(self, own: Tensor, every: Tensor) -> Tensor:
        return super().mask(own, every) & torch.isin(every, own)


@fault("context", "attends_to_later")
class LaterPositionsSeen(PlainSession):
    """Attends to all positions, also to later ones."""

    def mask(self, own: Tensor, every: Tensor) -> Tensor:
        return torch.ones_like(super().mask(own, every))


@fault("context", "positions_of_other_division")
class ZigzagTakenForHalves(PlainSession):
    """Takes the positions of a zigzag for those of halves."""

    def positions_of(self, replica: int, length: int) -> list[int]:
        each = length // self.spec.replicas
        return list(range(each * replica, each * (replica + 1)))


@fault("context", "keys_without_gradient")
class KeysWithoutGradient(PlainSession):
    """Returns no gradient to the keys and values of other ranks."""

    def own_gradient(self, grad: Tensor, own: slice) -> Tensor:
        return grad[:, own].clone()


@fault("context", "key_gradients_averaged")
class KeyGradientsAveraged(PlainSession):
    """Averages the gradients of keys and values over the ranks that attend to them."""

    def own_gradient(self, grad: Tensor, own: slice) -> Tensor:
        return super().own_gradient(grad, own) / self.spec.replicas


@fault("context", "key_gradients_of_other_rank")
class KeyGradientsOfOtherPart(PlainSession):
    """Returns to the keys and values of a rank the gradients of another rank's."""

    def own_gradient(self, grad: Tensor, own: slice) -> Tensor:
        return super().own_gradient(grad.roll(own.stop - own.start, 1), own)
