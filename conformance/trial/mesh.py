"""A mesh of ranks by its sizes alone: coordinates, and the groups along a dimension, without a process group.

Ranks are numbered row by row, as :func:`torch.distributed.device_mesh.init_device_mesh` numbers them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product


@dataclass(frozen=True)
class Mesh:
    """A mesh with the size of each dimension, by its name."""

    sizes: Mapping[str, int]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return math.prod(self.sizes.values())

    @property
    def word(self) -> str:
        """The mesh as one word: ``dp2-tp2``."""
        return "-".join(f"{name}{size}" for name, size in self.sizes.items())

    @property
    def shown(self) -> str:
        """The mesh in a sentence: ``tp=2``, or ``dp=2 and tp=2``."""
        return " and ".join(f"{name}={size}" for name, size in self.sizes.items())

    @cached_property
    def coordinates(self) -> tuple[Mapping[str, int], ...]:
        """The coordinate of each rank: its index in each dimension."""
        places = product(*(range(size) for size in self.sizes.values()))
        return tuple(dict(zip(self.sizes, place, strict=True)) for place in places)

    def groups(self, along: Iterable[str]) -> list[list[int]]:
        """Return the groups of ranks that differ only in some dimensions, each in order."""
        varying = set(along)
        found: dict[tuple[int, ...], list[int]] = {}
        for rank, coordinate in enumerate(self.coordinates):
            fixed = tuple(place for name, place in coordinate.items() if name not in varying)
            found.setdefault(fixed, []).append(rank)
        return list(found.values())

    def named(self, ranks: Iterable[int]) -> str:
        """Return the dimensions along which some ranks are one whole group: ``tp``; else the ranks' numbers."""
        wanted = sorted(ranks)
        for name in self.sizes:
            if len(wanted) > 1 and wanted in self.groups([name]):
                return name
        if wanted == list(range(self.ranks)):
            return "all ranks"
        return f"ranks {', '.join(map(str, wanted))}"


def meshes_of(sizes: Mapping[str, Iterable[int]]) -> list[Mesh]:
    """Return every mesh with one of the given sizes in each dimension, those with the fewest ranks first."""
    found = [Mesh(dict(zip(sizes, chosen, strict=True))) for chosen in product(*sizes.values())]
    return sorted(found, key=lambda mesh: mesh.ranks)
