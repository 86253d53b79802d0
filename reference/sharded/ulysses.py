"""Ulysses attention: torch's own all-to-all turns a part of the sequence into some heads, and back."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

WIDTH, HEADS, ROWS, POSITIONS = 8, 4, 2, 8


class WholeHeads(nn.Module):
    """A norm and causal attention on one process."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        fused = self.to_heads(self.qkv(self.norm(value)).unflatten(-1, (3, HEADS, -1)))
        query, key, own = fused.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, own, is_causal=True)
        result: Tensor = value + self.out(self.to_positions(found.transpose(1, 2)).flatten(2))
        return result

    def to_heads(self, fused: Tensor) -> Tensor:
        """Return all positions of this rank's heads, from its positions of all heads."""
        return fused

    def to_positions(self, found: Tensor) -> Tensor:
        """Return this rank's positions of all heads, from all positions of its heads."""
        return found


class ShardedUlysses(WholeHeads):
    """One rank's positions outside the attention, and its heads inside."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group = mesh.get_group("sp")

    def to_heads(self, fused: Tensor) -> Tensor:
        return self.exchanged(fused, split=3, joined=1)

    def to_positions(self, found: Tensor) -> Tensor:
        return self.exchanged(found, split=1, joined=2)

    def exchanged(self, value: Tensor, *, split: int, joined: int) -> Tensor:
        """Divide a tensor along a dimension, send each rank its part, and join the received parts along another."""
        parts = torch.stack(value.chunk(self.group.size(), split)).contiguous()
        received = collectives.all_to_all_single_autograd(parts, None, None, self.group)
        return torch.cat(received.unbind(0), joined)


class UlyssesAttention:
    """The sharded stage: all gradients are summed in one flat buffer."""

    name = "ulysses-attention"
    mesh = {"sp": (2, 4)}
    placements = dict.fromkeys(("norm.weight", "qkv.weight", "out.weight", "out.bias"), Replicate())
    arg_placements = output_placements = (Shard(1),)
    module: type[ShardedUlysses] = ShardedUlysses

    def whole(self) -> nn.Module:
        return WholeHeads()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(ROWS, POSITIONS, WIDTH, generator=generator),)

    def finish(self, module: ShardedUlysses) -> None:
        grads = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat, group=module.group)
        for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(summed.view_as(grad))

    def grad_norm(self, module: ShardedUlysses) -> float:
        grads = [parameter.grad.double() for parameter in module.parameters() if parameter.grad is not None]
        return float(nn.utils.get_total_norm(grads))
