"""Operations to fix on a device; the one that fails most checks comes first."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradconform.contract.extra_ids import BLOCKS, name_in_id
from gradconform.fixtures.blocks.size import rungs
from gradconform.results import Report, Result
from gradconform.sources.operations.standings import OF_ONE, operations_in


@dataclass(frozen=True, slots=True)
class Culprit:
    """An operation of a device, under its dispatcher name, and the results that name it.

    ``size`` is the smallest number of elements that its largest argument had in a wrong result; None if no cause gives
    its arguments. ``passes`` is the check on the next smaller size of a block that fails by it; empty if there is none.
    """

    name: str
    results: tuple[Result, ...]
    text: str
    size: int | None = None
    passes: str = ""

    @property
    def checks(self) -> int:
        """Return how many checks name it."""
        return len({result.check for result in self.results})

    @property
    def places(self) -> tuple[str, ...]:
        """Return the devices and dtypes on which it is wrong."""
        return tuple(dict.fromkeys(f"{result.device} {result.dtype}" for result in self.results))


def culprits(report: Report) -> list[Culprit]:
    """Return the wrong operations on a report's devices, sorted by the number of checks that they fail."""
    named: dict[str, list[tuple[Result, str]]] = {}
    for result in report:
        for name, text in _named(result):
            named.setdefault(name, []).append((result, text))
    found = [_culprit(name, some, report) for name, some in named.items()]
    return sorted(found, key=lambda one: (-one.checks, one.name))


def _named(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the operations that a result accuses, each once, with the text on it."""
    if (result.status, result.kind) != ("error", "device"):
        return
    causes: list[Mapping[str, Any]] = [finding["cause"] for finding in result.findings if finding["cause"]]
    reported = {name: str(cause["text"]) for cause in causes for name in operations_in(cause)}
    yield from reported.items()


def _culprit(name: str, some: list[tuple[Result, str]], report: Report) -> Culprit:
    results = tuple(result for result, _ in some)
    sizes = [size for result in results for size in _sizes(name, result)]
    blocks = dict.fromkeys(filter(None, (_block(result) for result in results)))
    passes = next(filter(None, (_smaller(block, results, report) for block in blocks)), "")
    return Culprit(name, results, some[0][1], min(sizes, default=None), passes)


def _sizes(name: str, result: Result) -> Iterator[int]:
    """Yield the number of elements of an operation's largest argument, for each cause that gives its arguments."""
    for cause in (finding["cause"] for finding in result.findings if finding["cause"]):
        names = tuple(map(str, cause.get("names", ())))
        if cause["kind"] in OF_ONE and names[:1] == (name,) and len(names) > 1:
            elements = cause.get("elements", _elements(names[1]))
            yield from [] if elements is None else [int(elements)]


def _elements(arguments: str) -> int | None:
    """Return the number of elements of the largest argument, from the shapes in a cause without ``elements``.

    Reports of gradconform before the field ``elements`` have only the shapes.
    """
    shapes = re.findall(r"\(([\d, ]*)\)", arguments)
    return max((math.prod(map(int, re.findall(r"\d+", shape))) for shape in shapes), default=None)


def _block(result: Result) -> str | None:
    """Return the block of a result's check without its size; None for any other check."""
    name = name_in_id(result.check, BLOCKS)
    return None if name is None else name.rpartition(".")[0]


def _smaller(block: str, wrong: tuple[Result, ...], report: Report) -> str:
    """Return the passed check on the largest size of a block below its smallest failed size."""
    sizes = {size.name: size.elements for size in rungs("full")}
    least = min(sizes[result.check.rpartition(".")[2]] for result in wrong if _block(result) == block)
    passed = [one.check for one in report if _block(one) == block and one.status == "passed"]
    below = {sizes[check.rpartition(".")[2]]: check for check in reversed(passed)}
    return below[max(found)] if (found := [size for size in below if size < least]) else ""
