"""Experts with a capacity: tokens past it are dropped. Experts are divided over ``ep``, and each one over ``tp``."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from .column_row import squares
from .regions import copy_in, reduce_out, summed

WIDTH, HIDDEN, EXPERTS, GROUPS, TOKENS, CAPACITY = 6, 8, 4, 4, 8, 3


class _Swapped(torch.autograd.Function):
    """The ranks' equal parts of the first dimension are exchanged; the exchange is its own reverse."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return swapped(value, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return swapped(grads[0], ctx.group), None


def swapped(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the parts that all ranks send here."""
    found = torch.empty_like(value, memory_format=torch.contiguous_format)
    dist.all_to_all_single(found, value.contiguous(), group=group)
    return found


class WholeCapacity(nn.Module):
    """A router and all experts on one process, with tokens in groups."""

    def __init__(self, experts: int = EXPERTS, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, hidden) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, WIDTH) / HIDDEN**0.5)

    def forward(self, value: Tensor) -> Tensor:
        """Return the outputs of (groups, tokens, width); a dropped token is returned unchanged."""
        weight, chosen = self.router(value).softmax(-1).max(-1)
        one_hot = F.one_hot(chosen, EXPERTS)
        place = ((one_hot.cumsum(1) - 1) * one_hot).sum(-1)
        slot = F.one_hot(place.clamp(max=CAPACITY), CAPACITY + 1)[..., :CAPACITY]
        dispatch = (one_hot.unsqueeze(-1) * slot.unsqueeze(-2)).to(value.dtype)
        arrived = self.to_experts(torch.einsum("gtec,gtw->egcw", dispatch, value))
        back = self.to_groups(self.computed(arrived))
        found: Tensor = value + torch.einsum("gtec,egcw->gtw", dispatch, back) * weight.unsqueeze(-1)
        return found

    def computed(self, arrived: Tensor) -> Tensor:
        """Return the outputs of the experts for (experts, groups, capacity, width)."""
        inner = F.silu(torch.einsum("egcw,ewh->egch", arrived, self.up))
        return torch.einsum("egch,ehw->egcw", inner, self.down)

    def to_experts(self, sent: Tensor) -> Tensor:
        """Return the slots of all groups for this module's experts."""
        return sent

    def to_groups(self, back: Tensor) -> Tensor:
        """Return the slots of all experts for this module's groups."""
        return back


class ShardedCapacity(WholeCapacity):
    """One rank's groups, and its part of its experts."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.ep, self.tp = mesh.get_group("ep"), mesh.get_group("tp")
        super().__init__(EXPERTS // self.ep.size(), HIDDEN // self.tp.size())

    def computed(self, arrived: Tensor) -> Tensor:
        return reduce_out(super().computed(copy_in(arrived, self.tp)), self.tp)

    def to_experts(self, sent: Tensor) -> Tensor:
        parts: Tensor = self.swap(sent).unflatten(0, (self.ep.size(), -1))
        return parts.transpose(0, 1).flatten(1, 2)

    def to_groups(self, back: Tensor) -> Tensor:
        parts = back.unflatten(1, (self.ep.size(), -1))
        return self.swap(parts.transpose(0, 1).flatten(0, 1))

    def swap(self, value: Tensor) -> Tensor:
        """Exchange equal parts of the first dimension over the expert ranks, and their gradients back."""
        found: Tensor = _Swapped.apply(value, self.ep)  # type: ignore[no-untyped-call] # so is torch's
        return found


class CapacityExperts:
    """The sharded stage."""

    name = "capacity-experts"
    mesh = {"ep": (2,), "tp": (1, 2)}
    placements = {
        "router.weight": Replicate(), "up": {"ep": Shard(0), "tp": Shard(2)}, "down": {"ep": Shard(0), "tp": Shard(1)},
    }  # fmt: skip
    arg_placements = output_placements = ({"ep": Shard(0)},)
    module: type[ShardedCapacity] = ShardedCapacity

    def whole(self) -> nn.Module:
        return WholeCapacity()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(GROUPS, TOKENS, WIDTH, generator=generator),)

    def finish(self, module: ShardedCapacity) -> None:
        if module.router.weight.grad is not None:
            dist.all_reduce(module.router.weight.grad, group=module.ep)

    def grad_norm(self, module: ShardedCapacity) -> float:
        of_experts = summed(summed(squares([module.up, module.down]), module.ep), module.tp)
        return float((of_experts + squares([module.router.weight])).sqrt())
