"""Causal attention whose sequences ranks may share, its mistakes, and the part of a batch that each rank gets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.diagnosis.cause import Mistake
from gradconform.runtime import Batch, ContextStyle, own_positions

#: The mistakes of ranks that share sequences in their attention.
MISTAKES = (
    Mistake.ATTENDS_TO_OWN_PART,
    Mistake.ATTENDS_TO_LATER,
    Mistake.POSITIONS_OF_OTHER_DIVISION,
    Mistake.KEYS_WITHOUT_GRADIENT,
    Mistake.KEY_GRADIENTS_AVERAGED,
    Mistake.KEY_GRADIENTS_OF_OTHER_RANK,
)


class CausalAttention(nn.Module):
    """Attention of each position to itself and earlier ones, without parameters."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the values (rows, positions, width) that queries find."""
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Attention(nn.Module):
    """Attention with its projections, after a norm: large scores would multiply roundings."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.inner = CausalAttention()

    def forward(self, x: Tensor) -> Tensor:
        """Return as many numbers as the input (rows, positions, width) has."""
        y: Tensor = self.out(self.inner(*self.qkv(self.norm(x)).chunk(3, -1)))
        return y


@dataclass(frozen=True, slots=True)
class MistakenAttention:
    """Causal attention of whole sequences in one process, with one mistake of ranks that divide them by a style."""

    mistake: Mistake
    style: ContextStyle
    replicas: int

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the values (rows, positions, width) that queries find."""
        length = query.shape[1]
        same = self._of_one_rank(length).to(query.device)
        scores, seen = query @ key.mT, self._seen(length, same).to(query.device)
        if self.mistake is Mistake.KEYS_WITHOUT_GRADIENT:
            scores = torch.where(same, scores, query @ key.detach().mT)
        elif self.mistake in {Mistake.KEY_GRADIENTS_AVERAGED, Mistake.KEY_GRADIENTS_OF_OTHER_RANK}:
            key, value = self._with_other_gradient(key), self._with_other_gradient(value)
            scores = query @ key.mT
        weights = torch.softmax((scores / query.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf), -1)
        if self.mistake is Mistake.KEYS_WITHOUT_GRADIENT:
            return (weights * same) @ value + (weights * ~same) @ value.detach()
        return weights @ value

    def _divided(self, style: ContextStyle, length: int) -> Tensor:
        """Return the positions of each rank, (ranks, positions)."""
        return torch.tensor([own_positions(style, rank, self.replicas, length) for rank in range(self.replicas)])

    def _of_one_rank(self, length: int) -> Tensor:
        """Return whether two positions are of one rank."""
        owner = torch.empty(length, dtype=torch.int64)
        for rank, positions in enumerate(self._divided(self.style, length)):
            owner[positions] = rank
        return owner[:, None] == owner

    def _seen(self, length: int, same: Tensor) -> Tensor:
        """Return which positions each position attends to."""
        places = torch.arange(length)
        if self.mistake is Mistake.POSITIONS_OF_OTHER_DIVISION:
            other: ContextStyle = "halves" if self.style == "zigzag" else "zigzag"
            places[self._divided(self.style, length).flatten()] = self._divided(other, length).flatten()
        causal = places[:, None] >= places
        if self.mistake is Mistake.ATTENDS_TO_LATER:
            return torch.ones_like(causal)
        return causal & same.cpu() if self.mistake is Mistake.ATTENDS_TO_OWN_PART else causal

    def _with_other_gradient(self, value: Tensor) -> Tensor:
        """Return the same keys or values, whose gradient is divided by the ranks or is another rank's."""
        if self.mistake is Mistake.KEY_GRADIENTS_AVERAGED:
            return value / self.replicas + value.detach() * (1 - 1 / self.replicas)
        parts = self._divided(self.style, value.shape[1])
        to = torch.empty(value.shape[1], dtype=torch.int64)
        to[parts.roll(1, 0).flatten()] = parts.flatten()
        return value.detach() + value[:, to] - value[:, to].detach()


def own_part(batch: Batch, style: ContextStyle, replica: int, replicas: int) -> Batch:
    """Return the positions of a batch that a replica gets."""
    own = own_positions(style, replica, replicas, batch.x.shape[1])
    return replace(batch, x=batch.x[:, own], target=batch.target[:, own])
