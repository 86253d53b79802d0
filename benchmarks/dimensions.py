"""What each dimension of the space finds that no other one does: python benchmarks/dimensions.py.

Every fault that names a dimension is held against every row. Such as have one of its values are to show it, in some of
them at least, and no other row is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gradconform.contract.space.checks import ROWS
from gradconform.contract.space.dimensions import DIMENSIONS
from gradconform.drive.reference64 import OracleCache
from gradconform.reference.faults import FAULTS, Fault
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

NAMES = tuple(dict.fromkeys(one.name for some in DIMENSIONS.values() for one in some))


@dataclass(frozen=True, slots=True)
class Shown:
    """How many rows of a fault's own fail, of how many, and how many others do."""

    fault: Fault
    failed: int
    own: int
    other_rows: int

    @property
    def alone(self) -> bool:
        """Whether rows with the fault's values show it, and no others."""
        return self.failed > 0 and self.other_rows == 0

    def __str__(self) -> str:
        """Return the fault with its values and rows."""
        return f"`{self.fault.name}` ({', '.join(self.fault.values)}; {self.failed} of {self.own})"


def measure(pattern: str = "*") -> Iterator[Shown]:
    """Yield what the rows of the space show of each fault that names a dimension."""
    oracles = OracleCache()
    for fault in FAULTS.values():
        if fault.dimension is not None and fnmatchcase(fault.name, pattern):
            yield _shown(fault, fault.dimension, oracles)


def _shown(fault: Fault, dimension: str, oracles: OracleCache) -> Shown:
    dtype = "float32" if fault.dtypes is None or "float32" in fault.dtypes else fault.dtypes[0]
    options = RunOptions.of(fault.make(), dtype=dtype, checks="space.*")
    report = Run(options, diagnose=False, oracles=oracles).run()
    failed = {result.check for result in report if result.status == "failed"}
    own = {check for check, (_, row) in ROWS.items() if row.get(dimension) in fault.values}
    return Shown(fault, len(failed & own), len(own), len(failed - own))


def table(found: Sequence[Shown]) -> list[str]:
    """Return the dimensions as a table in Markdown, with the faults of each."""
    head = ["dimension", "faults that its rows show (with these values; rows that fail)"]
    head += ["shown with other values too", "with no fault", "other rows that fail"]
    lines = [f"| {' | '.join(head)} |", "|---|---|---|---|---:|"]
    for name in NAMES:
        own = [one for one in found if one.fault.dimension == name]
        shared, bare = (", ".join(some) or "none" for some in _without_one_of_their_own(name, own))
        other_rows = sum(one.other_rows for one in own)
        lines.append(f"| {name} | {', '.join(map(str, own))} | {shared} | {bare} | {other_rows} |")
    return lines


def _without_one_of_their_own(name: str, faults: Sequence[Shown]) -> tuple[list[str], list[str]]:
    """Return the values of a dimension of which each fault has others as well, and those that no fault has.

    The plain value is left out: what shows with that alone shows everywhere.
    """
    values = {
        value.word for some in DIMENSIONS.values() for one in some if one.name == name for value in one.values[1:]
    }
    values -= {some[0].values[0].word for some in DIMENSIONS.values() if some[0].name == name}
    taken = [frozenset(one.fault.values) for one in faults if one.alone]
    lone = values - frozenset().union(*(some for some in taken if len(some) == 1))
    shared = lone & frozenset().union(*taken)
    return sorted(shared), sorted(lone - shared)


def problems(found: Sequence[Shown], *, every: bool) -> list[str]:
    """Return which faults are not shown by their dimension alone and, of ``every`` one, which dimensions have none."""
    having = {one.fault.dimension for one in found if one.alone}
    lacking = [f"no fault belongs to the dimension {name} alone" for name in NAMES if every and name not in having]
    return [*(f"{one} fails {one.other_rows} other rows" for one in found if not one.alone), *lacking]


def main() -> int:
    """Measure, and print."""
    found = list(measure())
    wrong = problems(found, every=True)
    print(*table(found), *wrong, sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
