"""The four exchanges of tensor parallelism as autograd Functions, as Megatron has them: one in F, its partner in B."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def summed(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over the ranks of a group."""
    total = value.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def gathered(value: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Return the ranks' parts, one after the other along a dimension."""
    value = value.contiguous()
    parts = [torch.empty_like(value) for _ in range(group.size())]
    dist.all_gather(parts, value, group=group)
    return torch.cat(parts, dim)


def scattered(value: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Return this rank's part of the sum over the ranks: a reduce-scatter, which gloo has for lists."""
    parts = [part.contiguous() for part in value.chunk(group.size(), dim)]
    own = torch.empty_like(parts[0])
    dist.reduce_scatter(own, parts, group=group)
    return own


def own_part(value: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Return this rank's part of a tensor that all ranks have."""
    return value.chunk(group.size(), dim)[group.rank()].contiguous()


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return summed(grads[0], ctx.group), None


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        return summed(value, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return gathered(value, group, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return scattered(grads[0], ctx.group, ctx.dim), None, None


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return scattered(value, group, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return gathered(grads[0], ctx.group, ctx.dim), None, None


def copy_in(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the value unchanged; its gradient is summed over the ranks."""
    found: Tensor = _Copied.apply(value, group)  # type: ignore[no-untyped-call] # so is torch's
    return found


def reduce_out(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the sum over the ranks; its gradient is passed on unchanged."""
    found: Tensor = _Reduced.apply(value, group)  # type: ignore[no-untyped-call] # as above
    return found


def gather_in(value: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Return the ranks' parts together; the gradient is summed, and each rank gets its part."""
    found: Tensor = _Gathered.apply(value, group, dim)  # type: ignore[no-untyped-call] # as above
    return found


def scatter_out(value: Tensor, group: dist.ProcessGroup, dim: int) -> Tensor:
    """Return this rank's part of the sum; the gradient's parts are put together again."""
    found: Tensor = _Scattered.apply(value, group, dim)  # type: ignore[no-untyped-call] # as above
    return found
