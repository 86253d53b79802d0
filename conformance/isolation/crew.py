"""All workers of a run: who is hired is let go in the end, and who ends before a check is counted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from gradconform.isolation.death import Death
from gradconform.isolation.seat import Seat
from gradconform.records import Header
from gradconform.results import Result
from gradconform.waivers.waiving import Waivers

#: After so many workers in a row that ended at no check at all, the run is given up.
_IDLE_DEATHS = 3


class RunStoppedError(Exception):
    """A run that was given up; what has a result is kept.

    ``exit_code`` is what the command ends with, None where the results decide that.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        """Keep both."""
        super().__init__(message)
        self.exit_code = exit_code


class Crew:
    """The workers of one run. ``header`` is what the first of them said; a later one has to say the same."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Keep what every worker is to make its session of."""
        self._options = options
        self._seats: list[Seat] = []
        self._idle_deaths = 0
        self.header: Header | None = None

    def hire(self) -> Seat:
        """Start a worker; its number is the first that is free, so that workers share what they have to evenly."""
        taken = {seat.number for seat in self._seats}
        number = next(number for number in itertools.count() if number not in taken)
        seat = Seat.taken(self._options, self.header, number)
        self._seats.append(seat)
        return seat

    def dismiss(self, seat: Seat) -> None:
        """End a worker."""
        seat.worker.stop()
        self._seats.remove(seat)

    def close(self) -> None:
        """End all workers."""
        while self._seats:
            self.dismiss(self._seats[0])

    def replace_idle(self, seat: Seat, death: Death) -> Seat:
        """Return a worker for one that was at no check; raise :class:`RunStoppedError` where that goes on."""
        self._idle_deaths += 1
        if self._idle_deaths >= _IDLE_DEATHS:
            told = "\n".join([death.text, *death.details])
            msg = f"{_IDLE_DEATHS} workers in a row ended before they began a check: {told}"
            raise RunStoppedError(msg)
        self.dismiss(seat)
        return self.hire()

    def settled(self, result: Result) -> Result:
        """Return a result that no worker has made under the waivers of the run, as a worker would have."""
        record = None if self.header is None else self.header.report["waivers"]
        return result if record is None else Waivers.from_record(record).settle(result)

    def all_is_well(self) -> None:
        """Note that a worker has given a result."""
        self._idle_deaths = 0
