"""Fixtures that compute plain autograd's results of a trial once for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradconform.drive.reference64 import OracleCache
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
