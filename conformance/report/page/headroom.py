"""Errors of a run against plain autograd: checks counted by their largest error, per device and dtype."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradconform.results import Result

from .rows import cell_of

#: Upper ends of the ranges after the first one, which holds checks that are bit-equal to plain autograd.
_ENDS = (0.01, 0.1, 1.0, 10.0, 1e3, 1e6)
_NAMES = ("0", "to 0.01", "to 0.1", "to 1", "to 10", "to 1e3", "to 1e6", "above")

#: The statuses that a range separates.
_SERIES = ("passed", "failed", "otherwise")


@dataclass(frozen=True, slots=True)
class Range:
    """The checks whose largest error is in one range, by status; ``bound``: the last range that may pass."""

    name: str
    counts: Mapping[str, int]
    bound: bool


@dataclass(frozen=True, slots=True)
class Headroom:
    """All ranges on one device in one dtype; ``series`` are the statuses present, ``most`` is the longest bar."""

    cell: str
    series: tuple[str, ...]
    ranges: tuple[Range, ...]
    most: int


def headroom_by_cell(results: Sequence[Result]) -> list[Headroom]:
    """Return the ranges of each device and dtype on which the run compared values."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        if result.headroom is not None:
            grouped.setdefault(cell_of(result), []).append(result)
    return [_headroom(cell, found) for cell, found in grouped.items()]


def _headroom(cell: str, results: Sequence[Result]) -> Headroom:
    counts = Counter((_range(result), _series(result)) for result in results)
    series = tuple(name for name in _SERIES if any(one == name for _, one in counts))
    ranges = tuple(
        Range(name, {one: counts[position, one] for one in series}, bound=name == "to 1")
        for position, name in enumerate(_NAMES)
    )
    return Headroom(cell, series, ranges, max(counts.values()))


def _range(result: Result) -> int:
    return 0 if not result.headroom else 1 + bisect_left(_ENDS, result.headroom)


def _series(result: Result) -> str:
    return result.status if result.status in _SERIES else "otherwise"
