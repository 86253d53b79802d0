"""Every dimension of the space has a fault that its rows alone show: without its values they pass."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gradconform import contract
from gradconform.contract.space.checks import ROWS
from gradconform.contract.space.dimensions import DIMENSIONS
from gradconform.contract.space.reset import non_default_values
from gradconform.drive.reference64 import OracleCache
from gradconform.reference.faults import FAULTS, Fault
from gradconform.results import Report
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

WORDS = {one.name: {v.word for some in DIMENSIONS.values() for d in some if d.name == one.name for v in d.values}
         for one in DIMENSIONS["split"]}  # fmt: skip

#: What plain autograd gave, for the faults that come after.
ORACLES = OracleCache()


def judged(fault: Fault, checks: Iterable[str]) -> Report:
    dtype = "float32" if fault.dtypes is None or "float32" in fault.dtypes else fault.dtypes[0]
    return Run(RunOptions.of(fault.make(), checks=list(checks), dtype=dtype), oracles=ORACLES).run()


def rows_of(fault: Fault) -> list[str]:
    """Return the rows that have a value of the fault, those with fewest parameters and fewest other values first."""
    found = {check: row for check, (_, row) in ROWS.items() if row.get(str(fault.dimension)) in fault.values}
    return sorted(
        found, key=lambda check: ("many-parameters" in found[check].values(), len(non_default_values(check) or ()))
    )


def rows_without(fault: Fault) -> list[str]:
    """Return few rows that have none of its values, and together every other value that such rows have."""
    others = {check: row for check, (_, row) in ROWS.items() if row.get(str(fault.dimension)) not in fault.values}
    left = {pair for row in others.values() for pair in row.items()}
    chosen: list[str] = []
    while left:
        chosen.append(max(others, key=lambda check: len(left & others[check].items())))
        left -= others[chosen[-1]].items()
    return chosen


@pytest.mark.parametrize("dimension", WORDS)
def test_each_dimension_has_a_fault_that_only_its_rows_find(dimension: str) -> None:
    fault = next(fault for fault in FAULTS.values() if fault.dimension == dimension)
    beside = judged(fault, rows_without(fault))
    assert beside.summary["failed"] == beside.summary["error"] == 0
    assert beside.summary["passed"] > 0
    of_it = judged(fault, rows_of(fault)[:12])
    shown = [finding for result in of_it if result.status == "failed" for finding in result.findings]
    assert fault.raises or "error" not in {finding["kind"] for finding in shown}
    needs = [finding["needs"] for finding in shown if finding["needs"] is not None]
    # A row that a single mistake explains whole is not tried without its values.
    explained = [not one["left"] for result in of_it for one in result.undone]
    assert {dimension} <= set().union(*needs) or any(explained)
    assert all(one.get(dimension, fault.values[0]) in fault.values for one in needs)


def test_faults_name_existing_dimensions_and_values() -> None:
    named = [(fault.dimension, fault.values) for fault in FAULTS.values() if fault.dimension is not None]
    assert all(values and set(values) <= WORDS[dimension] for dimension, values in named)


def test_a_fault_without_a_dimension_names_no_values() -> None:
    assert all(not fault.values for fault in FAULTS.values() if fault.dimension is None)
    assert set(ROWS) <= set(contract.checks_of())
