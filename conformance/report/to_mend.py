"""What is to be mended on a device: the operations that are wrong there, the one by which most checks fail first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradconform.contract.beside import BLOCKS, named_in
from gradconform.fixtures.blocks.size import rungs
from gradconform.results import Report, Result

#: Causes that name one operation first, and what it was given behind it.
_OF_ONE = {"operation_wrong", "layout_ignored", "layout_dependent", "slope_wrong", "rows_mixed"}
_KINDS = {*_OF_ONE, "operation_of_its_own", "operation_draws"}


@dataclass(frozen=True, slots=True)
class Culprit:
    """An operation of a device, as torch's dispatcher names it, and the results that name it.

    ``right`` is the most hidden values of a block up to which it was right, ``wrong`` the fewest of the same block with
    which it was wrong; both None where no block shows both.
    """

    name: str
    results: tuple[Result, ...]
    text: str
    right: int | None = None
    wrong: int | None = None

    @property
    def checks(self) -> int:
        """How many checks name it."""
        return len({result.check for result in self.results})

    @property
    def places(self) -> tuple[str, ...]:
        """The devices and dtypes where it is wrong."""
        return tuple(dict.fromkeys(f"{result.device} {result.dtype}" for result in self.results))


def culprits(report: Report) -> list[Culprit]:
    """Return the operations that are wrong on the devices of a report, by how many checks they fail."""
    named: dict[str, list[tuple[Result, str]]] = {}
    for result in report:
        for name, text in _named(result):
            named.setdefault(name, []).append((result, text))
    found = [_culprit(name, some, report) for name, some in named.items()]
    return sorted(found, key=lambda one: (-one.checks, one.name))


def _named(result: Result) -> Iterator[tuple[str, str]]:
    """Yield the operations that a result accuses, each once, with what is said of it."""
    if (result.status, result.kind) != ("error", "device"):
        return
    causes: list[Mapping[str, Any]] = [finding["cause"] for finding in result.findings if finding["cause"]]
    told = {name: str(cause["text"]) for cause in causes for name in operations_in(cause)}
    yield from told.items()


def operations_in(cause: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of operations in a cause; beside one that is wrong by itself stands what it was given."""
    if cause["kind"] not in _KINDS:
        return ()
    names = tuple(map(str, cause.get("names", ())))
    return names[:1] if cause["kind"] in _OF_ONE else names


def _culprit(name: str, some: list[tuple[Result, str]], report: Report) -> Culprit:
    results = tuple(result for result, _ in some)
    for block in dict.fromkeys(filter(None, (_block(result) for result in results))):
        right, wrong = _bounds(block, results, report)
        if right is not None and wrong is not None:
            return Culprit(name, results, some[0][1], right, wrong)
    return Culprit(name, results, some[0][1])


def _block(result: Result) -> str | None:
    """Return the block that a result is on, without its size; None for any other check."""
    name = named_in(result.check, BLOCKS)
    return None if name is None else name.rpartition(".")[0]


def _bounds(block: str, wrong: tuple[Result, ...], report: Report) -> tuple[int | None, int | None]:
    """Return up to how many hidden values all of a block passed, and from how many on something in it is wrong."""
    sizes = {size.name: size.elements for size in rungs("full")}
    of_block = [result for result in report if _block(result) == block]
    failing = {sizes[result.check.rpartition(".")[2]] for result in wrong if _block(result) == block}
    least = min(failing)
    below = {sizes[one.check.rpartition(".")[2]] for one in of_block if one.status == "passed"}
    right = [count for count in below if count < least]
    return (max(right) if right else None), least
