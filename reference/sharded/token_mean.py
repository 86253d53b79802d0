"""A classifier on a mesh of two dimensions: rows over ``dp``, columns over ``tp``, and a mean over all valid tokens."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn import functional as F

from .column_row import squares
from .regions import copy_in, reduce_out, summed

WIDTH, HIDDEN, CLASSES, ROWS, IGNORED = 6, 8, 5, 12, -100

#: The valid tokens in the first half of the rows, of all there.
VALID = {"equal": 6, "unequal": 2, "none-on-one-rank": 0}


class WholeClassifier(nn.Module):
    """Two layers and a mean over valid rows, on one process."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, CLASSES)

    def forward(self, value: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.down(F.gelu(self.up(value))), labels, ignore_index=IGNORED)


class ShardedClassifier(nn.Module):
    """One rank's rows and columns."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.dp, self.tp = mesh.get_group("dp"), mesh.get_group("tp")
        self.up = nn.Linear(WIDTH, HIDDEN // self.tp.size())
        self.down = nn.Linear(HIDDEN // self.tp.size(), CLASSES)

    def forward(self, value: Tensor, labels: Tensor) -> Tensor:
        """Return this rank's part of the loss: its rows, divided by the valid rows of all ranks."""
        inner = F.gelu(self.up(copy_in(value, self.tp)))
        scores = reduce_out(F.linear(inner, self.down.weight), self.tp) + self.down.bias
        losses = F.cross_entropy(scores, labels, ignore_index=IGNORED, reduction="sum")
        return self.averaged(losses, (labels != IGNORED).sum())

    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        """Return the mean over the valid rows of all ranks."""
        return losses / summed(valid, self.dp)


class TokenMean:
    """The sharded stage."""

    name = "token-mean"
    mesh = {"dp": (2,), "tp": (1, 2)}
    options = {"tokens": ("unequal", "equal", "none-on-one-rank")}
    placements = {
        "up.weight": {"tp": Shard(0)}, "up.bias": {"tp": Shard(0)}, "down.weight": {"tp": Shard(1)},
        "down.bias": Replicate(),
    }  # fmt: skip
    arg_placements = ({"dp": Shard(0)}, {"dp": Shard(0)})
    output_placements = ({"dp": Partial()},)
    module: type[ShardedClassifier] = ShardedClassifier

    def __init__(self, *, tokens: str = "unequal") -> None:
        self.valid = VALID[tokens]

    def whole(self) -> nn.Module:
        return WholeClassifier()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        labels = torch.randint(CLASSES, (ROWS,), generator=generator)
        labels[self.valid : ROWS // 2] = IGNORED
        return torch.randn(ROWS, WIDTH, generator=generator), labels

    def finish(self, module: ShardedClassifier) -> None:
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=module.dp)

    def grad_norm(self, module: ShardedClassifier) -> float:
        split = [module.up.weight, module.up.bias, module.down.weight]
        return float((summed(squares(split), module.tp) + squares([module.down.bias])).sqrt())
