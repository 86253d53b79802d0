"""Deals the items of a plan to workers, watches over them, and puts a new one in the place of one that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from select import select
from typing import TYPE_CHECKING, Any

from gradconform.isolation.crew import Crew, RunStoppedError
from gradconform.isolation.death import Death
from gradconform.isolation.inquiry import inquire
from gradconform.isolation.seat import LOOK
from gradconform.records import Header, Place
from gradconform.refusal import RunRefusedError
from gradconform.results import EXIT_ENVIRONMENT, Result

if TYPE_CHECKING:
    from gradconform.execution import OnResult, OnStart

#: After so many checks in a row that ended their worker, the run is given up.
GIVEN_UP_AFTER = 20

#: How many items a worker is dealt at a time where there are several.
_HAND = 16


class IsolatedRun:
    """A run whose checks run in worker processes. This process imports no torch.

    Raises :class:`~gradconform.refusal.RunRefusedError` where the target, or what else was asked for, is refused.
    """

    def __init__(self, options: Mapping[str, Any], *, workers: int, check_timeout: float) -> None:
        """Start the first worker, which resolves the target and makes the plan: ``header`` holds it."""
        self._workers, self._limit = workers, check_timeout
        self._waiting: deque[Place] = deque()
        self._in_a_row = 0
        self._crew = Crew(options)
        try:
            self._seats = [self._crew.hire()]
            self.header = self._crew.header = self._first_header()
        except RunStoppedError as error:
            self.close()
            raise RunRefusedError(str(error), EXIT_ENVIRONMENT) from error
        except BaseException:
            self.close()
            raise

    def _first_header(self) -> Header:
        while True:
            seat = self._seats[0]
            seat.worker.spoke(LOOK)
            for heard in seat.hear(self._limit):
                if isinstance(heard, Death):
                    self._seats = [self._crew.replace_idle(seat, heard)]
            if seat.header is not None:
                return seat.header

    def run(self, on_result: OnResult, *, on_start: OnStart, places: Iterable[Place]) -> None:
        """Run the items at ``places``; what comes of each is told as it comes, in any order where workers are several.

        Raises :class:`RunStoppedError` where the run is given up, and ``KeyboardInterrupt`` where it is interrupted.
        """
        self._waiting.extend(places)
        hands = -(-len(self._waiting) // _HAND)
        self._seats += [self._crew.hire() for _ in range(min(self._workers, hands) - 1)]
        try:
            while self._waiting or any(seat.dealt for seat in self._seats):
                self._deal()
                select([seat.worker for seat in self._seats], [], [], LOOK)
                for number in range(len(self._seats)):
                    self._attend(number, on_result, on_start)
        except RunRefusedError as error:
            msg = f"a new worker could not go on: {error}"
            raise RunStoppedError(msg, error.exit_code) from error
        finally:
            self.close()

    def close(self) -> None:
        """End all workers."""
        self._crew.close()

    def _deal(self) -> None:
        """Give each worker that is nearly done some more items; one that is alone gets all of them."""
        for seat in self._seats:
            if self._waiting and len(seat.dealt) <= 1:
                count = min(_HAND if len(self._seats) > 1 else len(self._waiting), len(self._waiting))
                seat.deal([self._waiting.popleft() for _ in range(count)])

    def _attend(self, number: int, on_result: OnResult, on_start: OnStart) -> None:
        """Pass on what a worker says; put another one in its place where it ended."""
        seat = self._seats[number]
        for heard in seat.hear(self._limit):
            if isinstance(heard, Death):
                self._replace(number, heard, on_result)
            elif heard.status == "not_run":
                on_start(Place.of(heard), heard.level, heard.requirement)
            else:
                self._crew.all_is_well()
                self._in_a_row = 0
                on_result(heard)

    def _replace(self, number: int, death: Death, on_result: OnResult) -> None:
        """Put a new worker in the place of one that ended; what it has not begun waits again, first of all."""
        seat = self._seats[number]
        result = None
        if seat.begun is None:
            self._seats[number] = self._crew.replace_idle(seat, death)
        else:
            self._crew.dismiss(seat)
            result, self._seats[number] = inquire(self._crew, seat.begun, death, self._limit)
            seat.dealt.remove(Place.of(result))
        self._waiting.extendleft(reversed(seat.dealt))
        if result is not None:
            on_result(result)
            self._give_up_in_time(result)

    def _give_up_in_time(self, result: Result) -> None:
        self._in_a_row += 1
        if self._in_a_row >= GIVEN_UP_AFTER:
            msg = f"{GIVEN_UP_AFTER} checks in a row ended their process, the last of them {Place.of(result).name}"
            raise RunStoppedError(msg)
