"""The comparisons that the oracles made on a device, and the skipped cases by reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gradconform.contract.extra_ids import ADDITIVE, ALONE, EDGES, FINITE_DIFFERENCES, LAYOUT, oracle_of
from gradconform.results import Result
from gradconform.text.counts import count


@dataclass(frozen=True, slots=True)
class ByOracle:
    """The work of one oracle: the number of values ``compared``, their kernels or samples, and the skipped cases."""

    oracle: str
    compared: int
    tried: frozenset[str]
    not_tried: Mapping[str, frozenset[str]]

    @property
    def brief(self) -> str:
        """Return the comparisons in a few words."""
        return f"{self.compared:,} {_COMPARED[self.oracle]}"

    @property
    def text(self) -> str:
        """Return compared and total numbers, and how many cases were skipped for which reason."""
        sort = "kernel" if self.oracle == LAYOUT else "sample"
        text = f"{self.oracle}: {self.brief}, of {count(len(self.tried), sort)}"
        reasons = sorted(self.not_tried.items(), key=lambda one: (-len(one[1]), one[0]))
        reported = ", ".join(f"{len(names)} ({why})" for why, names in reasons)
        return f"{text}; not tried, or not in every way: {reported}" if reported else text


#: The things that each oracle compares, in words that follow the number.
_COMPARED = {
    LAYOUT: "kernel calls compared in other layouts",
    FINITE_DIFFERENCES: "samples compared with finite differences",
    ADDITIVE: "gradients of batches compared with those of their rows",
    ALONE: "outputs and gradients compared with the CPU's",
    EDGES: "kernel calls compared with the CPU's at the edges of kernels",
}


def by_oracles(results: Iterable[Result]) -> Iterator[ByOracle]:
    """Yield the work of each oracle that has a result."""
    found = [(oracle_of(result.check), result.oracle) for result in results if result.oracle]
    for oracle in _COMPARED:
        own = [one for name, one in found if name == oracle and one is not None]
        if not own:
            continue
        not_tried: dict[str, set[str]] = {}
        for why, names in (pair for one in own for pair in one["not_tried"].items()):
            not_tried.setdefault(why, set()).update(names)
        yield ByOracle(
            oracle,
            sum(one["compared"] for one in own),
            frozenset(name for one in own for name in one["tried"]),
            {why: frozenset(names) for why, names in not_tried.items()},
        )
