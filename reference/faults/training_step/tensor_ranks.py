"""Faults of layers that tensor ranks share: what is summed, what is not, and what counts once."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch, Kept, Shard

from .registry import fault


@fault("one-stage dense column-row")
class PartialSumTakenForWhole(PlainSession):
    """Uses a row layer's partial sum on one tensor rank as the whole sum."""

    def summed(self, value: Tensor) -> Tensor:
        return value


@fault("one-stage sequence", "tensor_rank_alone")
class SequenceNormNotReduced(PlainSession):
    """Leaves each tensor rank with a norm's gradient from its part of the sequence."""

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        return grad


@fault("one-stage sequence", "divided")
class SequenceNormAveraged(PlainSession):
    """Averages over tensor ranks a norm's gradients from parts of the sequence."""

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        reduced = super().over_tensor_ranks(name, grad)
        return reduced if reduced is grad else reduced / self.spec.tensor_ranks


@fault("one-stage dense column-row", "multiplied")
class WholeLayersReduced(PlainSession):
    """Sums over tensor ranks the gradients of layers that each rank has whole."""

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        return grad if name in self.split else self.sum(grad)


@fault("one-stage dense column-row", "tensor_rank_alone")
class ColumnInputNotReduced(PlainSession):
    """Sends back the input gradient of a column layer from one tensor rank."""

    def entered(self, value: Tensor) -> Tensor:
        return value


@fault("one-stage dense column-row")
class RowBiasOnEachRank(PlainSession):
    """Adds the bias of a row layer on every tensor rank, before the sum."""

    def row(self, module: nn.Linear, value: Tensor) -> Tensor:
        return self.summed(F.linear(value, module.weight, module.bias))


@fault("sequence clipped", "norm_of_tensor_ranks")
class NormCountsTensorRanks(PlainSession):
    """Counts layers that each tensor rank has whole once per rank in the norm."""

    def holders(self, name: str) -> int:
        return self.spec.replicas


@fault("sequence clipped")
class NormOfOneTensorRank(PlainSession):
    """Uses each tensor rank's own norm as the norm of all."""

    def norm(self) -> float:
        return super().norm() / math.sqrt(self.spec.tensor_ranks)


@fault("one-stage vocabulary")
class LossOfOwnMaximum(PlainSession):
    """Subtracts each tensor rank's own largest logit, and sums the exponentials as if it were common."""

    def largest(self, value: Tensor) -> Tensor:
        return value


@fault("one-stage vocabulary")
class LossOfOwnSum(PlainSession):
    """Divides by the exponentials of each tensor rank's own logits."""

    def total_of(self, value: Tensor) -> Tensor:
        return value


@fault("one-stage vocabulary")
class UnknownTokensLookedUp(PlainSession):
    """Adds the first row of an embedding for each token of another tensor rank."""

    def known(self, tokens: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
        here, inside = super().known(tokens, vocabulary)
        return here, torch.ones_like(inside)


@fault("one-stage tokens column-row", "divided")
class TokensOfTensorRanks(PlainSession):
    """Counts the tokens of a batch once per tensor rank."""

    def tokens(self, batch: Batch) -> float:
        return super().tokens(batch) * self.spec.tensor_ranks


@fault("one-stage dense column-row", "multiplied")
class LossOnEachTensorRank(PlainSession):
    """Counts the loss once per tensor rank."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return super().weight(batch, chunk) * self.spec.tensor_ranks


@fault("one-stage dropout column-row")
class DropoutOfEachTensorRank(PlainSession):
    """Draws another dropout on each tensor rank for values that all ranks have whole."""

    def chunks(self, batch: Batch) -> list[Batch]:
        return [self._drawn(chunk) for chunk in super().chunks(batch)]

    def _drawn(self, chunk: Batch) -> Batch:
        kwargs = dict(chunk.kwargs)
        if "seeds" in kwargs:
            kwargs["seeds"] = kwargs["seeds"] + self.spec.tensor_rank
        return replace(chunk, kwargs=kwargs)


@fault("one-stage vocabulary")
class TensorShardsSwapped(PlainSession):
    """Returns each gradient as the part of another tensor rank."""

    def part(self, name: str, value: Kept) -> Kept:
        kept = super().part(name, value)
        if isinstance(kept, Shard) and name in self.split and kept.rows % self.spec.tensor_ranks == 0:
            return replace(kept, start=kept.rows - kept.start - kept.rows // self.spec.tensor_ranks)
        return kept
