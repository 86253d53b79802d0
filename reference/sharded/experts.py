"""Experts divided over ranks: tokens go to their expert by all-to-all, with a router, a shared expert and a loss."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn import functional as F

from .column_row import squares
from .regions import summed

WIDTH, EXPERTS, TOKENS = 8, 4, 16


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.splits = sent, received, group
        return exchanged(value, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        sent, received, group = ctx.splits
        return exchanged(grads[0], received, sent, group), None, None, None


def exchanged(value: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    """Return the rows that all ranks send here."""
    found = value.new_empty(sum(received), *value.shape[1:])
    dist.all_to_all_single(found, value.contiguous(), received, sent, group=group)
    return found


class Routed(nn.Module):
    """Router, experts and shared expert; ``experts`` are those that this module has."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.Parameter(torch.randn(experts, WIDTH, WIDTH) / WIDTH**0.5)

    def balance(self, shares: Tensor, chosen: Tensor, tokens: int) -> Tensor:
        """Return the auxiliary loss over the shares of this module's tokens, of ``tokens`` in total."""
        counts = self.counted(F.one_hot(chosen, EXPERTS).sum(0)).to(shares.dtype)
        return EXPERTS * ((counts / tokens) * shares.sum(0) / tokens).sum()

    def counted(self, counts: Tensor) -> Tensor:
        """Return the number of tokens of each expert."""
        return counts


class WholeExperts(Routed):
    """All experts on one process."""

    def __init__(self) -> None:
        super().__init__(EXPERTS)

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs and the auxiliary loss."""
        shares = self.router(value).softmax(-1)
        weight, chosen = shares.max(-1)
        routed = torch.einsum("td,tdh->th", value, self.experts[chosen]) * weight.unsqueeze(-1)
        return routed + self.shared(value), self.balance(shares, chosen, value.shape[0])


class ShardedExperts(Routed):
    """One rank's experts and tokens."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group("ep")
        super().__init__(EXPERTS // self.group.size())

    def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of this rank's tokens, and its part of the auxiliary loss."""
        shares = self.router(value).softmax(-1)
        weight, chosen = shares.max(-1)
        order = chosen.argsort(stable=True)
        size = self.group.size()
        sent = chosen.div(EXPERTS // size, rounding_mode="floor").bincount(minlength=size)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        splits = sent.tolist(), received.tolist()
        arrived = self.send(value[order], *splits)
        which = exchanged(chosen[order], *splits, self.group) % (EXPERTS // size)
        back = self.send(torch.einsum("td,tdh->th", arrived, self.experts[which]), *splits[::-1])
        routed = torch.zeros_like(back).index_copy(0, order, back) * self.weighted(weight).unsqueeze(-1)
        return routed + self.shared(value), self.balance(shares, chosen, value.shape[0] * size)

    def send(self, value: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Send rows to their ranks, and their gradients back."""
        found: Tensor = _Exchanged.apply(value, sent, received, self.group)  # type: ignore[no-untyped-call] # so is torch's
        return found

    def weighted(self, weight: Tensor) -> Tensor:
        """Return the weights of the routed outputs."""
        return weight

    def counted(self, counts: Tensor) -> Tensor:
        """Return the number of tokens of each expert, over all ranks."""
        return summed(counts, self.group)


class RoutedExperts:
    """The sharded stage."""

    name = "routed-experts"
    mesh = {"ep": (2, 4)}
    placements = {
        "router.weight": Replicate(), "shared.weight": Replicate(), "shared.bias": Replicate(), "experts": Shard(0),
    }  # fmt: skip
    arg_placements = (Shard(0),)
    output_placements = (Shard(0), Partial())
    module: type[ShardedExperts] = ShardedExperts

    def whole(self) -> nn.Module:
        return WholeExperts()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(TOKENS, WIDTH, generator=generator),)

    def finish(self, module: ShardedExperts) -> None:
        for parameter in (*module.router.parameters(), *module.shared.parameters()):
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=module.group)

    def grad_norm(self, module: ShardedExperts) -> float:
        copied = [*module.router.parameters(), *module.shared.parameters()]
        return float((summed(squares([module.experts]), module.group) + squares(copied)).sqrt())
