"""Plain context parallelism: replicas share each sequence, and every rank attends to the keys of all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.runtime import StepSpec, own_positions

from .expert_parallel import ExpertSession
from .tensor_parallel import region


class ContextSession(ExpertSession):
    """One of the ranks that share sequences. Each method is one requirement of sharing, for a fault to override."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Replace the attentions of this rank's stages."""
        super().__init__(modules, spec)
        for _, attention in self.own_modules(spec.attentions):
            vars(attention)["forward"] = self.attended

    def positions_of(self, replica: int, length: int) -> list[int]:
        """Return the positions of a replica in sequences of some length."""
        return own_positions(self.spec.context, replica, self.spec.replicas, length)

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return causal attention of this rank's positions to those of all ranks."""
        length = query.shape[1] * self.spec.replicas
        positions = torch.tensor([self.positions_of(replica, length) for replica in range(self.spec.replicas)])
        own, every = positions[self.spec.replica].to(query.device), positions.flatten().to(query.device)
        keys, values = self.of_all_ranks(key), self.of_all_ranks(value)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask(own, every))

    def mask(self, own: Tensor, every: Tensor) -> Tensor:
        """Return which positions each of this rank's positions attends to."""
        return own[:, None] >= every

    def of_all_ranks(self, value: Tensor) -> Tensor:
        """Return the keys or values of all ranks; the gradient of each part is the sum over ranks."""
        start = self.spec.replica * value.shape[1]
        own = slice(start, start + value.shape[1])
        return region(value, self.gathered, partial(self.own_gradient, own=own))

    def gathered(self, value: Tensor) -> Tensor:
        """Return the positions of all replicas, replica by replica."""
        return torch.cat(self.of_replicas(value), 1)

    def own_gradient(self, grad: Tensor, own: slice) -> Tensor:
        """Return the sum over ranks of the gradient for this rank's positions."""
        return self.total(grad)[:, own].clone()

    def tokens_of(self, target: Tensor) -> Tensor:
        """Return how many tokens of a micro-batch count, on all ranks with a part of its sequences."""
        return self.total(self.spec.counts(target).sum())

    def loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """Return this rank's share of the loss of a micro-batch."""
        loss = super().loss_of(output, target)
        is_mean = self.spec.context != "whole" and self.spec.reduction == "mean"
        return loss / self.tokens_of(target) if is_mean else loss
