"""A plan that has to measure: its progress, and its end at the time budget of the run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

from gradconform.exits import EXIT_INCOMPLETE, RunRefusedError
from gradconform.process.wait_notices import first_line_after, print_to_stderr

from .time_budget import TimeBudget

_BUDGET: ContextVar[TimeBudget] = ContextVar("the budget of the plan")


@contextlib.contextmanager
def planning_within(budget: TimeBudget) -> Iterator[None]:
    """Apply a run's time budget to the plans that this context makes."""
    token = _BUDGET.set(budget)
    try:
        yield
    finally:
        _BUDGET.reset(token)


class Planning:
    """The progress of a plan that measures ``total`` things, each named by ``what``."""

    def __init__(self, what: str, total: int) -> None:
        """Start the time."""
        self._what, self._total = what, total
        self._budget = _BUDGET.get(None)
        self._since = time.monotonic()
        self._next = first_line_after()

    def begin(self, done: int) -> None:
        """Report the progress before the next thing is measured, after 5 s, 10 s, 20 s and so on.

        Raises :class:`~gradconform.exits.RunRefusedError` if the run's time budget is used up.
        """
        progress = f"{done} of {self._total} {self._what}"
        if self._budget is not None and self._budget.spent:
            msg = f"the --time-budget is used up; {progress} are planned and kept; no check ran, so there is no verdict"
            raise RunRefusedError(msg, EXIT_INCOMPLETE)
        passed = time.monotonic() - self._since
        if passed >= self._next:
            self._next = 2 * passed
            print_to_stderr(f"planned {progress} after {passed:.0f} s")
