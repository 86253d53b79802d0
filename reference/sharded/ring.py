"""Ring attention in zigzag order, with one hand-written backward: gradients of keys and values go round with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate

from .column_row import squares
from .context import passed_on

WIDTH, HEADS, ROWS, POSITIONS = 8, 2, 2, 8


def zigzag(whole: Tensor, coordinate: Mapping[str, int], sizes: Mapping[str, int]) -> Tensor:
    """Return a rank's positions: one block from the start and one from the end, so that all ranks have equal work."""
    blocks = whole.chunk(2 * sizes["cp"], 1)
    place = coordinate["cp"]
    return torch.cat([blocks[place], blocks[-1 - place]], 1)


class _Ring(torch.autograd.Function):
    """Causal attention of this rank's queries over the keys and values of all ranks."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, pair: Tensor, positions: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Add the blocks one by one: each changes the sum of exponentials, and so the weight of earlier ones."""
        total = torch.full_like(query[..., :1], float("-inf"))
        found = torch.zeros_like(query)
        for block, scores in _blocks(query, pair, positions, group):
            own = scores.logsumexp(-1, keepdim=True)
            more = torch.logaddexp(total, own)
            found = found * (total - more).exp() + (scores - more).exp() @ block[1]
            total = more
        ctx.save_for_backward(query, pair, positions, found, total)
        ctx.group = group
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Pass each block round again; its gradient follows it, and is at home after one round."""
        query, pair, positions, found, total = ctx.saved_tensors
        (grad,) = grads
        shift = (grad * found).sum(-1, keepdim=True)
        of_query, of_pair = torch.zeros_like(query), torch.zeros_like(pair)
        for block, scores in _blocks(query, pair, positions, ctx.group):
            shares = (scores - total).exp()
            of_scores = shares * (grad @ block[1].transpose(-1, -2) - shift) / query.shape[-1] ** 0.5
            of_query += of_scores @ block[0]
            of_pair += torch.stack([of_scores.transpose(-1, -2) @ query, shares.transpose(-1, -2) @ grad])
            of_pair = passed_on(of_pair, ctx.group, 1)
        return of_query, of_pair, None, None


def _blocks(
    query: Tensor, pair: Tensor, positions: Tensor, group: dist.ProcessGroup
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the keys and values of each rank with the scores of this rank's queries, from the own rank backwards."""
    size = group.size()
    for step in range(size):
        if step:
            pair = passed_on(pair, group, 1)
        later = positions[(group.rank() - step) % size] > positions[group.rank()].unsqueeze(-1)
        scores = query @ pair[0].transpose(-1, -2) / query.shape[-1] ** 0.5
        yield pair, scores.masked_fill(later, float("-inf"))


class WholeRing(nn.Module):
    """Causal attention on one process."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        split = self.qkv(value).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        found: Tensor = self.out(self.attended(*split).transpose(1, 2).flatten(2))
        return found

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return causal attention, of shape (rows, heads, positions, size)."""
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class ShardedRing(WholeRing):
    """One rank's positions."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group = mesh.get_group("cp")

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return attention, computed at least in float32, as kernels do."""
        wide = torch.promote_types(query.dtype, torch.float32)
        size = self.group.size()
        order = torch.arange(query.shape[2] * size, device=query.device).unsqueeze(0)
        positions = torch.stack([zigzag(order, {"cp": place}, {"cp": size})[0] for place in range(size)])
        pair = torch.stack([key, value]).to(wide)
        found: Tensor = _Ring.apply(query.to(wide), pair, positions, self.group)  # type: ignore[no-untyped-call] # so is torch's
        return found.to(query.dtype)


class RingAttention:
    """The sharded stage."""

    name = "ring-attention"
    mesh = {"cp": (2, 4)}
    placements = dict.fromkeys(("qkv.weight", "qkv.bias", "out.weight", "out.bias"), Replicate())
    arg_placements = output_placements = (zigzag,)
    module: type[ShardedRing] = ShardedRing

    def whole(self) -> nn.Module:
        return WholeRing()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(ROWS, POSITIONS, WIDTH, generator=generator),)

    def finish(self, module: ShardedRing) -> None:
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=module.group)

    def grad_norm(self, module: ShardedRing) -> float:
        return float(squares(module.parameters()).sqrt())
