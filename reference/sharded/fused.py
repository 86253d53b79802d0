"""Attention heads divided over ranks; the fused weight has queries, keys and values one after another."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from .regions import copy_in, reduce_out

WIDTH, HEADS, SIZE, ROWS, POSITIONS = 8, 4, 4, 2, 5


class Heads(nn.Module):
    """Some heads of attention."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * heads * SIZE)
        self.out = nn.Linear(heads * SIZE, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        rows, positions, _ = value.shape
        fused = self.qkv(self.enter(value)).view(rows, positions, 3, self.heads, SIZE)
        query, key, own = fused.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, own, is_causal=True)
        found = found.transpose(1, 2).reshape(rows, positions, -1)
        return self.leave(F.linear(found, self.out.weight)) + self.out.bias

    def enter(self, value: Tensor) -> Tensor:
        return value

    def leave(self, value: Tensor) -> Tensor:
        return value


class ShardedHeads(Heads):
    """One rank's heads."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group("tp")
        super().__init__(HEADS // self.group.size())

    def enter(self, value: Tensor) -> Tensor:
        return copy_in(value, self.group)

    def leave(self, value: Tensor) -> Tensor:
        return reduce_out(value, self.group)


def own_heads(whole: Tensor, coordinate: Mapping[str, int], sizes: Mapping[str, int]) -> Tensor:
    """Return a rank's heads of queries, keys and values."""
    parts = whole.view(3, HEADS * SIZE, *whole.shape[1:]).chunk(sizes["tp"], 1)
    return parts[coordinate["tp"]].reshape(-1, *whole.shape[1:])


class FusedHeads:
    """The sharded stage."""

    name = "fused-heads"
    mesh = {"tp": (2, 4)}
    placements = {
        "qkv.weight": own_heads, "qkv.bias": own_heads, "out.weight": Shard(1), "out.bias": Replicate(),
    }  # fmt: skip
    module: type[ShardedHeads] = ShardedHeads

    def whole(self) -> nn.Module:
        return Heads(HEADS)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(ROWS, POSITIONS, WIDTH, generator=generator),)
