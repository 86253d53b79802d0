"""Replicas of a tensor-parallel MLP: a hook begins to sum each gradient during the backward, and ``finish`` waits."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from .column_row import HIDDEN, ROWS, WIDTH, WholeMLP, squares
from .regions import copy_in, reduce_out, summed


class HookedMLP(nn.Module):
    """One rank's rows and columns, with the sums over ``dp`` that are on their way."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.dp, self.tp = mesh.get_group("dp"), mesh.get_group("tp")
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN // self.tp.size())
        self.down = nn.Linear(HIDDEN // self.tp.size(), WIDTH)
        self.begun: list[tuple[Tensor, Tensor, dist.Work]] = []
        for parameter in self.parameters():
            parameter.register_post_accumulate_grad_hook(self.begin)

    def forward(self, value: Tensor) -> Tensor:
        inner = F.gelu(self.up(copy_in(self.norm(value), self.tp)))
        return reduce_out(F.linear(inner, self.down.weight), self.tp) + self.down.bias

    def begin(self, parameter: Tensor) -> None:
        """Take a gradient away, and begin its sum; that of the next micro-batch gets its own sum."""
        grad = parameter.grad
        if grad is not None:
            grad = grad.contiguous()
            work = dist.all_reduce(grad, group=self.group_of(parameter), async_op=True)
            if work is not None:
                self.begun.append((parameter, grad, work))
            parameter.grad = None

    def group_of(self, parameter: Tensor) -> dist.ProcessGroup:
        """Return the ranks over which a gradient is summed."""
        return self.dp

    def wait(self) -> None:
        """Add all sums to the gradients."""
        for parameter, total, work in self.begun:
            work.wait()
            parameter.grad = total if parameter.grad is None else parameter.grad + total
        self.begun.clear()


class HookedReplicas:
    """The sharded stage."""

    name = "hooked-replicas"
    mesh = {"dp": (2,), "tp": (1, 2)}
    placements = {
        "norm.weight": Replicate(), "norm.bias": Replicate(), "down.bias": Replicate(),
        "up.weight": {"tp": Shard(0)}, "up.bias": {"tp": Shard(0)}, "down.weight": {"tp": Shard(1)},
    }  # fmt: skip
    arg_placements = output_placements = ({"dp": Shard(0)},)
    module: type[HookedMLP] = HookedMLP

    def whole(self) -> nn.Module:
        return WholeMLP()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        return (torch.randn(2 * ROWS, 5, WIDTH, generator=generator),)

    def finish(self, module: HookedMLP) -> None:
        module.wait()

    def grad_norm(self, module: HookedMLP) -> float:
        split = [module.up.weight, module.up.bias, module.down.weight]
        whole = [*module.norm.parameters(), module.down.bias]
        return float((summed(squares(split), module.tp) + squares(whole)).sqrt())
