"""The parts of parameters that runtimes divide over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.runtime import Shard, StepSpec


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


@dataclass(frozen=True, slots=True)
class SharedLayer:
    """A layer of a stage that ranks share, by its full name with the stage's number, and how; it can be replaced."""

    name: str
    style: str
    module: nn.Module
    replace: Callable[[nn.Module], None]


def shared_layers(stages: Mapping[int, nn.Module], spec: StepSpec) -> Iterator[SharedLayer]:
    """Yield the layers of this rank's stages that ranks share."""
    for full, style in spec.shared.items():
        index, _, name = full.partition(".")
        if int(index) in stages:
            parent, _, last = name.rpartition(".")
            around = stages[int(index)].get_submodule(parent)
            yield SharedLayer(full, style, around.get_submodule(last), partial(setattr, around, last))


def padded(value: Tensor, dim: int, size: int) -> Tensor:
    """Return a tensor with zeros after its end in a dimension."""
    missing = size - value.shape[dim]
    return F.pad(value, (0, 0) * (value.dim() - 1 - dim) + (0, missing)) if missing else value


def fill(own: nn.Parameter, whole: nn.Parameter, value: Tensor) -> None:
    """Set this rank's parameter to its part, a ``value`` of the ``whole`` one; it is frozen if that is."""
    own.requires_grad_(whole.requires_grad)
    with torch.no_grad():
        own.copy_(value)


def divided_words(spec: StepSpec, parts: Mapping[str, Part]) -> int | None:
    """Return how many words a head has whose rows ranks divide, 0 on a rank of another stage; None if none has."""
    heads = [name for name, style in spec.shared.items() if style == "vocabulary"]
    if not heads:
        return None
    return parts[f"{heads[-1]}.weight"].rows if spec.is_last else 0
