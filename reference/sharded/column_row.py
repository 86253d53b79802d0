"""An MLP with a norm, split by columns and then by rows, with sequence parallelism as an option."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from .regions import copy_in, gather_in, reduce_out, scatter_out, summed

WIDTH, HIDDEN, ROWS, POSITIONS = 8, 16, 2, 8


class WholeMLP(nn.Module):
    """A norm and an MLP on one process."""

    def __init__(self) -> None:
        """Create the layers."""
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        """Return the outputs, of the shape of the input."""
        found: Tensor = self.down(F.gelu(self.up(self.norm(value))))
        return found


class ShardedMLP(nn.Module):
    """One rank's part. Each method is one exchange, so that a fault replaces one of them."""

    def __init__(self, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
        """Create the layers with this rank's shapes."""
        super().__init__()
        self.group = mesh.get_group("tp")
        self.sequence_parallel = sequence_parallel
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, HIDDEN // self.group.size())
        self.down = nn.Linear(HIDDEN // self.group.size(), WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        """Return this rank's outputs: whole ones, or with sequence parallelism its positions."""
        inner = F.gelu(self.up(self.enter(self.norm(value))))
        return self.leave(F.linear(inner, self.down.weight)) + self.down.bias

    def enter(self, value: Tensor) -> Tensor:
        """Pass the normalised input on to the columns of all ranks."""
        return gather_in(value, self.group, 1) if self.sequence_parallel else copy_in(value, self.group)

    def leave(self, value: Tensor) -> Tensor:
        """Sum the products of all ranks."""
        return scatter_out(value, self.group, 1) if self.sequence_parallel else reduce_out(value, self.group)

    @property
    def sequence_parameters(self) -> list[nn.Parameter]:
        """The parameters whose gradient each rank has for its positions alone."""
        own = [*self.norm.parameters(), self.down.bias] if self.sequence_parallel else []
        return [one for one in own if one.requires_grad]


class ColumnRowMLP:
    """The sharded stage."""

    name = "column-row-mlp"
    mesh = {"tp": (2, 4)}
    options = {"sequence_parallel": (False, True)}
    module: type[ShardedMLP] = ShardedMLP

    def __init__(self, *, sequence_parallel: bool = False) -> None:
        """Choose whether activations between the layers are divided along the sequence."""
        self.sequence_parallel = sequence_parallel
        of_values: Any = Shard(1) if sequence_parallel else Replicate()
        self.arg_placements = self.output_placements = (of_values,)

    placements = {
        "norm.weight": Replicate(), "norm.bias": Replicate(),
        "up.weight": Shard(0), "up.bias": Shard(0), "down.weight": Shard(1), "down.bias": Replicate(),
    }  # fmt: skip

    def whole(self) -> nn.Module:
        """Return the stage on one process."""
        return WholeMLP()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's part."""
        return self.module(mesh, sequence_parallel=self.sequence_parallel)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return a batch of sequences, of shape (rows, positions, width)."""
        return (torch.randn(ROWS, POSITIONS, WIDTH, generator=generator),)

    def finish(self, module: ShardedMLP) -> None:
        """Sum the gradients of the parameters that each rank has for its positions alone."""
        for parameter in module.sequence_parameters:
            if parameter.grad is not None:
                parameter.grad = summed(parameter.grad, module.group)

    def grad_norm(self, module: ShardedMLP) -> float:
        """Return the norm of all gradients: shards of all ranks, and replicated ones once."""
        split = [module.up.weight, module.up.bias, module.down.weight]
        whole = [*module.norm.parameters(), module.down.bias]
        return float((summed(squares(split), module.group) + squares(whole)).sqrt())


def squares(parameters: Iterable[Tensor]) -> Tensor:
    """Return the sum of the squares of gradients, in float64."""
    found = torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        if parameter.grad is not None:
            found += parameter.grad.double().square().sum()
    return found
