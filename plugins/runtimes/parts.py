"""The parts of parameters that runtimes divide over ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from gradconform.runtime import Shard


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a parameter on this rank: its start in a dimension, of which the whole parameter has ``rows``.

    The part may end with padding.
    """

    start: int
    rows: int
    dim: int = 0

    def shard(self, value: Tensor) -> Shard:
        """Return the part without its padding."""
        count = min(value.shape[self.dim], self.rows - self.start)
        return Shard(value.narrow(self.dim, 0, count), self.start, self.rows, self.dim)


def padded(value: Tensor, dim: int, size: int) -> Tensor:
    """Return a tensor with zeros after its end in a dimension."""
    missing = size - value.shape[dim]
    return F.pad(value, (0, 0) * (value.dim() - 1 - dim) + (0, missing)) if missing else value
