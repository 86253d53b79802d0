"""Causal attention whose sequences ranks may share, and the part of a batch that each of them gets."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.runtime import Batch, ContextStyle, own_positions


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


def own_part(batch: Batch, style: ContextStyle, replica: int, replicas: int) -> Batch:
    """Return the positions of a batch that a replica gets."""
    own = own_positions(style, replica, replicas, batch.x.shape[1])
    return replace(batch, x=batch.x[:, own], target=batch.target[:, own])
