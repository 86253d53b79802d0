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
    """Divides by the number of micro-batches in the loss and behind the step."""

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
    """Divides by the number of micro-batches where the loss of a step is a sum."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return super().weight(batch, chunk) / self.spec.microbatches


@fault("ddp-tokens", "divided_by_other")
class ByMicrobatches(PlainSession):
    """Divides by the number of micro-batches of all replicas in place of that of tokens."""

    def tokens(self, batch: Batch) -> float:
        return float(self.spec.microbatches * self.spec.replicas)


@fault("ddp-tokens", "mean_of_microbatches")
class ByTokensOfMicrobatch(PlainSession):
    """Takes the mean of each micro-batch by its own tokens, and the mean of these."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        if self.spec.reduction != "tokens":
            return super().weight(batch, chunk)
        own = float(self.spec.counts(chunk.target).sum())
        return 1.0 / (own * self.spec.microbatches * self.spec.replicas)


@fault("ddp-tokens", "mean_of_replicas")
class ByTokensOfReplica(PlainSession):
    """Divides each replica by its own number of tokens, and takes the mean."""

    def tokens(self, batch: Batch) -> float:
        return float(self.spec.counts(batch.target).sum()) * self.spec.replicas


@fault("ddp-tokens", "divided")
class TokensAndReplicas(PlainSession):
    """Divides by the number of all tokens, and then by that of replicas."""

    def tokens(self, batch: Batch) -> float:
        return super().tokens(batch) * self.spec.replicas


@fault("ddp-tokens", "divided")
class TokensAndMicrobatches(PlainSession):
    """Divides by the number of all tokens, and then by that of micro-batches."""

    def tokens(self, batch: Batch) -> float:
        return super().tokens(batch) * self.spec.microbatches


@fault("ddp-tokens", "divided_by_other")
class ByPaddedTokens(PlainSession):
    """Counts the tokens that are ignored as well."""

    def tokens(self, batch: Batch) -> float:
        return float(batch.target.numel() * self.spec.replicas)


@fault("ddp-tokens", "divided_by_other")
class ByTokensOfLastMicrobatch(PlainSession):
    """Takes the number of tokens from the last micro-batch, times the number of micro-batches."""

    def tokens(self, batch: Batch) -> float:
        last = list(batch.split())[-1]
        counted = self.spec.counts(last.target).sum().to(torch.float64)
        dist.all_reduce(counted)
        return float(counted) / len(self.spec.placement) * self.spec.microbatches


@fault("ddp", "multiplied")
class ReplicasNotDivided(PlainSession):
    """Sums over replicas where the mean is wanted."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return super().weight(batch, chunk) * self.spec.replicas


@fault("ddp", "divided")
class ReplicasDividedTwice(PlainSession):
    """Divides by the number of replicas in the loss and in the reduction."""

    def over_replicas(self, value: Tensor) -> Tensor:
        return super().over_replicas(value) / self.spec.replicas


@fault("fsdp-accumulated", "divided")
class SumDividedByReplicas(PlainSession):
    """Takes the mean over replicas where the sum is wanted."""

    def over_replicas(self, value: Tensor) -> Tensor:
        total = super().over_replicas(value)
        return total / self.spec.replicas if self.spec.reduction == "sum" else total


@fault("plain", "sign_reversed")
class SignReversed(PlainSession):
    """Goes up the loss."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        return -super().weight(batch, chunk)
