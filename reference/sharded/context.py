"""Attention whose sequence is divided over ranks: keys and values go round in a ring."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from .column_row import squares

WIDTH, ROWS, POSITIONS = 8, 2, 8


def passed_on(value: Tensor, group: dist.ProcessGroup, step: int) -> Tensor:
    """Return the tensor of the rank ``step`` places before this one, in a ring."""
    ranks = dist.get_process_group_ranks(group)
    place = group.rank()
    found = torch.empty_like(value, memory_format=torch.contiguous_format)
    moves = [
        dist.P2POp(dist.isend, value.contiguous(), ranks[(place + step) % len(ranks)], group),
        dist.P2POp(dist.irecv, found, ranks[(place - step) % len(ranks)], group),
    ]
    for work in dist.batch_isend_irecv(moves):
        work.wait()
    return found


class _PassedOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return passed_on(value, group, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return passed_on(grads[0], ctx.group, -1), None


class WholeAttention(nn.Module):
    """Causal attention on one process."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        query, key, own = self.qkv(value).chunk(3, -1)
        found: Tensor = self.out(attended(query, key, own, 0))
        return found


def attended(query: Tensor, key: Tensor, value: Tensor, first: int) -> Tensor:
    """Return causal attention of queries whose first position is ``first`` over all keys."""
    positions = torch.arange(query.shape[1], device=query.device) + first
    later = torch.arange(key.shape[1], device=query.device) > positions.unsqueeze(-1)
    scores = (query @ key.transpose(-1, -2) / WIDTH**0.5).masked_fill(later, float("-inf"))
    found: Tensor = scores.softmax(-1) @ value
    return found


class ShardedAttention(WholeAttention):
    """One rank's positions."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group = mesh.get_group("cp")

    def forward(self, value: Tensor) -> Tensor:
        query, key, own = self.qkv(value).chunk(3, -1)
        pair = self.round(torch.cat([key, own], -1))
        keys, values = pair.chunk(2, -1)
        found: Tensor = self.out(attended(query, keys, values, self.group.rank() * value.shape[1]))
        return found

    def round(self, pair: Tensor) -> Tensor:
        """Return keys and values of all ranks, in the order of positions."""
        blocks = {self.group.rank(): pair}
        for step in range(1, self.group.size()):
            pair = self.passed(pair)
            blocks[(self.group.rank() - step) % self.group.size()] = pair
        return torch.cat([blocks[place] for place in range(self.group.size())], 1)

    def passed(self, pair: Tensor) -> Tensor:
        """Pass a block on, and its gradient back."""
        found: Tensor = _PassedOn.apply(pair, self.group)  # type: ignore[no-untyped-call] # so is torch's
        return found


class ContextAttention:
    """The sharded stage."""

    name = "context-attention"
    mesh = {"cp": (2, 4)}
    placements = dict.fromkeys(("qkv.weight", "qkv.bias", "out.weight", "out.bias"), Replicate())
    arg_placements = output_placements = (Shard(1),)
    module: type[ShardedAttention] = ShardedAttention

    def whole(self) -> nn.Module:
        return WholeAttention()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(ROWS, POSITIONS, WIDTH, generator=generator),)

    def finish(self, module: ShardedAttention) -> None:
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=module.group)

    def grad_norm(self, module: ShardedAttention) -> float:
        return float(squares(list(module.parameters())).sqrt())
