"""Faults of what a loss counts: by micro-batches, by tokens, by replicas."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch

from .registry import each, fault


@fault("plain", "divided")
class DividedTwice(PlainSession):
    """Divides by the number of micro-batches in the loss and again after the step."""

    def reduce(self) -> None:
        super().reduce()
        each(self, lambda _, grad: grad / self.spec.microbatches)


@fault("plain", "multiplied")
class NotDivided(PlainSession):
    """Never divides by the number of micro-batches."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return super().weight(batch, chunk) * self.spec.microbatches


@fault("gpipe-sum", "divided")
class SumDivided(PlainSession):
    """Divides by the number of micro-batches although the loss of a step is a sum."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return super().weight(batch, chunk) / self.spec.microbatches


@fault("ddp-tokens", "divided_by_other")
class ByMicrobatches(PlainSession):
    """Divides by the number of micro-batches of all replicas instead of the number of tokens."""

    def tokens(self, batch: Batch) -> float:
        return float(self.spec.microbatches * self.spec.replicas)


@fault("ddp-tokens", "mean_of_microbatches")
class ByTokensOfMicrobatch(PlainSession):
    """Averages each micro-batch over its own tokens, and then averages these means."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        if self.spec.reduction != "tokens":
            return super().weight(batch, chunk)
        own = float(self.spec.counts(chunk.target).sum())
        return 1.0 / (own * self.spec.microbatches * self.spec.replicas)


@fault("ddp-tokens", "mean_of_replicas")
class ByTokensOfReplica(PlainSession):
    """Averages each replica over its own tokens, and then averages the replicas."""

    def tokens(self, batch: Batch) -> float:
        return float(self.spec.counts(batch.target).sum()) * self.spec.replicas


@fault("ddp-tokens", "divided")
class TokensAndReplicas(PlainSession):
    """Divides by the number of all tokens and then by the number of replicas."""

    def tokens(self, batch: Batch) -> float:
        return super().tokens(batch) * self.spec.replicas


@fault("ddp-tokens", "divided")
class TokensAndMicrobatches(PlainSession):
    """Divides by the number of all tokens and then by the number of micro-batches."""

    def tokens(self, batch: Batch) -> float:
        return super().tokens(batch) * self.spec.microbatches


@fault("ddp-tokens", "divided_by_other")
class ByPaddedTokens(PlainSession):
    """Counts ignored tokens too."""

    def tokens(self, batch: Batch) -> float:
        return float(batch.target.numel() * self.spec.replicas)


@fault("ddp-tokens", "divided_by_other")
class ByTokensOfLastMicrobatch(PlainSession):
    """Uses the last micro-batch's number of tokens, times the number of micro-batches."""

    def tokens(self, batch: Batch) -> float:
        last = list(batch.split())[-1]
        counted = self.spec.counts(last.target).sum().to(torch.float64)
        dist.all_reduce(counted)
        return float(counted) / len(self.spec.placement) * self.spec.microbatches


@fault("ddp", "multiplied")
class ReplicasNotDivided(PlainSession):
    """Sums over replicas instead of averaging."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return super().weight(batch, chunk) * self.spec.replicas


@fault("ddp", "divided")
class ReplicasDividedTwice(PlainSession):
    """Divides by the number of replicas in the loss and in the reduction."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value) / self.spec.replicas


@fault("fsdp-accumulated", "divided")
class SumDividedByReplicas(PlainSession):
    """Averages over replicas instead of summing."""

    def over_replicas(self, value: Tensor) -> Tensor:
        total = super().over_replicas(value)
        return total / self.spec.replicas if self.spec.reduction == "sum" else total


@fault("plain", "sign_reversed")
class SignReversed(PlainSession):
    """Ascends the loss."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return -super().weight(batch, chunk)
