"""The time limit for starting checks in a run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from gradconform.exits import RunStoppedError

_T = TypeVar("_T")


class TimeBudget:
    """A number of seconds from its creation, or no limit: nothing is started after that."""

    def __init__(self, seconds: float | None) -> None:
        """Start the time."""
        self.seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds
        self._begun = 0

    @property
    def spent(self) -> bool:
        """Whether the time is over."""
        return self._until is not None and time.monotonic() >= self._until

    @property
    def left(self) -> float | None:
        """Return the seconds that are left, None for no limit."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def within(self, things: Iterable[_T]) -> Iterator[_T]:
        """Yield things as long as there is time."""
        for thing in things:
            if self.spent:
                return
            self._begun += 1
            yield thing

    def raise_if_left(self, count: int) -> None:
        """Raise :class:`~gradconform.exits.RunStoppedError` if fewer than ``count`` things were yielded."""
        if self._begun < count:
            raise self.stopped(count - self._begun)

    def stopped(self, left: int) -> RunStoppedError:
        """Return the error of a run that ends with checks left."""
        checks = "check" if left == 1 else "checks"
        return RunStoppedError(f"the --time-budget of {self.seconds or 0:g} s is used up; {left} {checks} left to run")
