"""A worker with what it was dealt and what it is at."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradconform.isolation.channel import run_order
from gradconform.isolation.death import Death
from gradconform.isolation.process import Worker
from gradconform.records import Header, Place, Record, as_result
from gradconform.refusal import RunRefusedError
from gradconform.results import EXIT_ENVIRONMENT, Result

#: How often workers are looked after where none says anything, in seconds.
LOOK = 0.25


@dataclass(slots=True)
class Seat:
    """A worker and what it is at.

    ``dealt`` are the items that it has no result of, ``begun`` is the one that it is at, ``header`` what it says of the
    run, once it has made the plan; it has to be ``expected`` where that is known.
    """

    worker: Worker
    expected: Header | None = None
    number: int = 0
    header: Header | None = None
    dealt: deque[Place] = field(default_factory=deque)
    begun: Result | None = None
    _since: float = 0.0
    _announced: Death | None = None

    @classmethod
    def taken(cls, options: Mapping[str, Any], expected: Header | None, number: int) -> Seat:
        """Start a worker."""
        return cls(Worker({**options, "worker": number}), expected, number)

    def deal(self, places: Sequence[Place], *, oracle: bool = False) -> None:
        """Let the worker run ``places`` after what it has."""
        self.dealt.extend(places)
        self.worker.send(run_order(places, oracle=oracle))

    def hear(self, limit: float) -> Iterator[Result | Death]:
        """Yield what has come: results, an item that begins as one that is ``not_run``, and last the worker's death.

        A check that takes more than ``limit`` seconds is such a death. Raises ``KeyboardInterrupt`` where the worker
        was interrupted, and :class:`~gradconform.refusal.RunRefusedError` where it cannot make the plan.
        """
        ended = self.worker.ended  # asked first: what it said before it ended is read below
        while self.worker.receiver.open and self.worker.spoke(0):
            for record in self.worker.receive():
                found = self._take(record)
                if found is not None:
                    yield found
        if ended:
            yield self._announced or self.worker.death()
        elif self.begun is not None and time.monotonic() - self._since > limit:
            yield self.worker.death(limit=limit)

    def _take(self, record: Record) -> Result | None:
        kind = record["record"]
        if kind == "started":
            self._since = time.monotonic()
            self.begun = Result(status="not_run", **{name: value for name, value in record.items() if name != "record"})
            return self.begun
        if kind == "result":
            result = as_result(record)
            self.begun = None
            self.dealt.remove(Place.of(result))
            return result
        if kind == "run":
            self.header = self._as_expected(Header.from_record(record))
        elif kind == "gone":
            self._announced = Death.told(record)
        elif kind == "interrupted":
            raise KeyboardInterrupt
        elif kind == "refused":
            raise RunRefusedError(record["message"], record["exit_code"])
        return None

    def _as_expected(self, header: Header) -> Header:
        """Return ``header`` where it is of the run that the first worker began: a file may have changed since."""
        for name, value in () if self.expected is None else self.expected.report.items():
            if header.report.get(name) != value:
                msg = f"{name} changed in the middle of the run, from {value!r} to {header.report.get(name)!r}"
                raise RunRefusedError(msg, EXIT_ENVIRONMENT)
        return header
