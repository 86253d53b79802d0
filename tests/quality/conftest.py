"""What plain autograd shows of a trial is computed once for all that a process judges."""

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
    """Judges a target as check_stage_backward does, with what is known of plain autograd by then."""
    oracles = OracleCache()

    def run(target: object, *, diagnose: bool = True, **options: Any) -> Report:
        return Run(RunOptions.of(target, **options), diagnose=diagnose, oracles=oracles).run()

    return run
