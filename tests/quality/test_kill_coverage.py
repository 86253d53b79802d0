"""Every check of the contract is killed for by at least one fault: a check that nothing can fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest

from gradconform import contract
from gradconform.reference.faults import FAULTS, Fault
from gradconform.results import Report

Judge = Callable[..., Report]

#: Checks that no fault fails yet. This list only ever shrinks: a check enters the contract with its fault.
NOT_KILLED_FOR: frozenset[str] = frozenset()

#: Faults that fail most of the checks of values; they go first, so that the others have few left to run.
BROAD = ("doubled", "returned-in-float64")


def failed_by(judge: Judge, fault: Fault, ids: set[str]) -> set[str]:
    if not ids:
        return set()
    # Of profile "full", so that the few checks that are only there count as well.
    report = judge(fault.make(), diagnose=False, checks=sorted(ids), profile="full")
    assert report.summary["error"] == 0
    return {result.check for result in report if result.status == "failed"}


def named(fault: Fault, ids: set[str]) -> set[str]:
    return {name for name in ids if any(fnmatchcase(name, pattern) for pattern in fault.named)}


@pytest.mark.slow
def test_every_check_is_failed_by_at_least_one_fault(judge: Judge) -> None:
    left = set(contract.checks_of())
    for name in BROAD:
        left -= failed_by(judge, FAULTS[name], left)
    for fault in FAULTS.values():
        left -= failed_by(judge, fault, named(fault, left))
    for fault in FAULTS.values():
        left -= failed_by(judge, fault, left)
    assert left == NOT_KILLED_FOR, f"no fault fails {sorted(left - NOT_KILLED_FOR)}; strike what is killed for now"
