"""The MLP of :mod:`.column_row` whose backward sums the input's gradient while it computes that of the weight."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from .column_row import ColumnRowMLP, ShardedMLP


class _Column(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, bias: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(value, weight)
        ctx.group = group
        return F.linear(value, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        value, weight = ctx.saved_tensors
        grad = grads[0].flatten(0, -2)
        of_value = grads[0] @ weight
        work = dist.all_reduce(of_value, group=ctx.group, async_op=True)
        of_weight, of_bias = grad.T @ value.flatten(0, -2), grad.sum(0)
        work.wait()
        return of_value, of_weight, of_bias, None


class OverlappedShardedMLP(ShardedMLP):
    def forward(self, value: Tensor) -> Tensor:
        columns: Tensor = _Column.apply(self.norm(value), self.up.weight, self.up.bias, self.group)  # type: ignore[no-untyped-call] # so is torch's
        return self.leave(F.linear(F.gelu(columns), self.down.weight)) + self.down.bias


class OverlappedMLP(ColumnRowMLP):
    """The sharded stage."""

    name = "overlapped-mlp"
    options = {}
    module = OverlappedShardedMLP
