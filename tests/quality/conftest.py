"""Fixtures that compute plain autograd's results of a trial, and a fault's report, once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradconform.drive.reference64 import OracleCache
from gradconform.reference.faults import Fault
from gradconform.results import Report
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

Judge = Callable[..., Report]


@pytest.fixture(scope="session")
def judge() -> Judge:
    """Return a function that judges a target like check_stage_backward, with cached results of plain autograd."""
    oracles = OracleCache()

    def run(target: object, *, diagnose: bool = True, **options: Any) -> Report:
        return Run(RunOptions.of(target, **options), diagnose=diagnose, oracles=oracles).run()

    return run


@pytest.fixture(scope="session")
def judge_fault(judge: Judge) -> Callable[..., Report]:
    """Return a function that judges a fault by the checks that it names, in the first of its dtypes.

    A report with a diagnosis is kept for the next test of the fault, which takes it (tests/together.py).
    """
    kept: dict[str, Report] = {}

    def run(fault: Fault, *, diagnose: bool) -> Report:
        if (report := kept.pop(fault.name, None)) is not None:
            return report
        dtype = "float32" if fault.dtypes is None or "float32" in fault.dtypes else fault.dtypes[0]
        report = judge(fault.make(), diagnose=diagnose, checks=fault.named, dtype=dtype, strict=True)
        if diagnose:
            kept[fault.name] = report
        return report

    return run
