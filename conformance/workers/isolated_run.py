"""A run in worker processes: gives them the checks of a plan, and continues when one of them ends."""

from __future__ import annotations

import itertools
import json
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gradconform.exits import EXIT_ENVIRONMENT, RunRefusedError, RunStoppedError
from gradconform.files.records import Header, as_result, differing
from gradconform.process.imports import TORCH
from gradconform.process.orphans import Orphans
from gradconform.process.pipes import Message
from gradconform.process.wait_notices import waiting
from gradconform.process.worker import Exit, Worker, wait_for
from gradconform.results import Place, Result
from gradconform.run.canaries import CANARIES, SILENT, disbelief, withdrawn
from gradconform.run.time_budget import TimeBudget
from gradconform.text.counts import count
from gradconform.waivers.waiver import Waivers

from .serving import places_to_run
from .worker_exit import Ending, charged

if TYPE_CHECKING:
    from gradconform.run.execution import OnResult, OnStart

#: The run stops after this many workers in a row that ended while running no check.
_MAX_EARLY_ENDS = 3

#: The time limit of a check that hung, when it runs again: so many times what plain autograd takes, or in seconds.
_TIMES_PLAIN, _LEAST_AGAIN = 20.0, 10.0

#: The slow modules that each worker needs, but for the contract's: it computes at import, and then OpenMP has threads.
_IMPORTS = (
    *TORCH, "gradconform.devices.prepared", "gradconform.reference.autograd",
    "gradconform.run.run",
)  # fmt: skip

#: The most checks in one batch if there are several workers.
_AT_A_TIME = 16

#: The most checks in one batch if the time is limited, since a batch is always finished.
_WITHIN_TIME = 2


@dataclass(slots=True)
class CheckWorker:
    """A worker that runs checks, each in at most ``limit`` seconds, and begins each in at most ``start_limit``.

    ``given`` are the places without a result. ``begun`` is the current check, since ``begun_at``. ``header`` describes
    the run, once the worker has made the plan; it must equal ``expected`` if that is known. A worker that ``waits``
    needs the measurements for the plan first. ``judged`` are its results, and ``owes`` the canaries that it has yet to
    report. ``disbelieved`` is the reason why none of its results counts.
    """

    process: Worker
    number: int
    limit: float
    start_limit: float
    expected: Header | None = None
    header: Header | None = None
    given: deque[Place] = field(default_factory=deque)
    begun: Result | None = None
    begun_at: float = 0.0
    judged: list[Result] = field(default_factory=list)
    owes: set[str] = field(default_factory=lambda: set(CANARIES))
    disbelieved: str | None = None
    waits: bool = False
    _announced: Ending | None = None

    def take_measured(self, measured: Path | None) -> None:
        """Send a waiting worker the file with the measurements for the plan."""
        if self.waits:
            self.waits = False
            self.process.expect(self.start_limit)
            self.process.send({"measured": None if measured is None else str(measured)})

    def give(self, places: Sequence[Place], *, oracle: bool = False, again: bool = False) -> None:
        """Let the worker run ``places`` after those that it already has."""
        self.given.extend(places)
        if self.begun is None:
            self._expect_a_start()
        self.process.send(places_to_run(list(places), oracle=oracle, again=again))

    def part(self) -> None:
        """Request the canaries a last time."""
        self.owes = set(CANARIES)
        self.process.expect(self.start_limit)
        self.process.send(places_to_run([], last=True))

    def listen(self) -> Iterator[Result | Ending]:
        """Yield the arrived messages: results, a started check as ``not_run``, and last the worker's end.

        Raises as :meth:`gradconform.process.worker.Worker.listen` does.
        """
        for heard in self.process.listen():
            if isinstance(heard, Exit):
                found: Result | Ending | None = self._announced or Ending.of(heard, at_check=self.begun is not None)
            else:
                found = self._take(heard)
            if found is not None:
                yield found

    def _take(self, message: Message) -> Result | None:
        if "gone" in message:
            self._announced = Ending.from_message(message)
            return None
        record = message["record"]
        if record == "started":
            self.process.expect(self.limit)
            reported = {name: value for name, value in message.items() if name != "record"}
            self.begun, self.begun_at = Result.from_dict({**reported, "status": "not_run"}), time.monotonic()
            return self.begun
        if record == "result":
            return self._take_result(as_result(message))
        self.header = self._as_expected(Header.from_record(message))
        self._expect_a_start()
        return None

    def _take_result(self, result: Result) -> Result | None:
        if result.check in CANARIES:
            self.owes.discard(result.check)
            self.disbelieved = self.disbelieved or disbelief(result)
            return None
        self.begun = None
        self.given.remove(result.place)
        self._expect_a_start()
        if self.owes:
            self.disbelieved = self.disbelieved or SILENT
        self.judged.append(result)
        return result

    def _expect_a_start(self) -> None:
        """Set the time limit for the start of the plan or the next check; an idle worker has none."""
        self.process.expect(None if self.header is not None and not self.given else self.start_limit)

    def _as_expected(self, header: Header) -> Header:
        """Return ``header`` if it is of the run that the first worker began: a file may have changed since."""
        changed = {} if self.expected is None else differing(self.expected.fixed, header.fixed)
        if changed:
            reported = ", ".join(f"{name} from {before!r} to {now!r}" for name, (before, now) in changed.items())
            parts = ", ".join(dict.fromkeys(name.partition(".")[0] for name in changed))
            msg = f"{parts} changed during the run: {reported}; start the run again"
            raise RunRefusedError(msg, EXIT_ENVIRONMENT)
        return header


#: The outcomes of a check that ended its worker, again and with plain autograd, if tried; and a worker for the rest.
_Tries: TypeAlias = tuple[Result | Ending, Result | Ending | None, CheckWorker]


class IsolatedRun:
    """A run whose checks run in worker processes. This process does not import torch.

    ``header`` is the first worker's description of the run; that of a later worker must be equal. Raises
    :class:`~gradconform.exits.RunRefusedError` if the target or another input is refused.
    """

    def __init__(  # noqa: PLR0913 (a run's limits)
        self,
        options: Mapping[str, Any],
        *,
        workers: int,
        check_timeout: float,
        start_timeout: float,
        max_lost_time: float = math.inf,
        budget: TimeBudget | None = None,
        measured: Mapping[str, Any] | None = None,
        paced: bool = False,
    ) -> None:
        """Start the first worker, which resolves the target and makes the plan, and the other first workers.

        Only the first worker measures for the plan, for example which samples can be judged; the others get the results
        as data. The first gets them too if ``measured`` holds them from a run that is resumed. ``max_lost_time`` is the
        time in seconds that checks which end their process may cost in the whole run. ``budget`` is the time in which
        the plan must be made and checks may begin. If the run is ``paced``, the header has the pace of the devices.
        """
        self._budget = budget or TimeBudget(None)
        self._options, self._count, self._paced = options, workers, paced
        self._limit, self._start_limit = check_timeout, start_timeout
        self._live: list[CheckWorker] = []
        self._orphans = Orphans()
        self._waiting: deque[Place] = deque()
        self._crashes = self._early_ends = 0
        self._lost, self._may_lose = 0.0, max_lost_time
        self._expected: Header | None = None
        self._measured = _kept(measured) if measured else None
        waits = self._measured is None and bool(options["options"]["operation"])
        try:
            count = max(1, min(workers, os.cpu_count() or 1))
            self._workers = [self._start(waits=waits and number > 0) for number in range(count)]
            with waiting("loading the target, the devices and the plan", start_timeout):
                self.header = self._expected = self._first_header()
        except RunStoppedError as error:
            self.close()
            raise RunRefusedError(str(error), EXIT_ENVIRONMENT) from error
        except BaseException:
            self.close()
            raise

    def _first_header(self) -> Header:
        while True:
            worker = self._workers[0]
            wait_for([worker.process])
            for heard in worker.listen():
                if isinstance(heard, Ending):
                    self._workers[0] = self._replace_unused(worker, heard)
            if worker.header is not None:
                if self._measured is None and worker.header.measured:
                    self._measured = _kept(worker.header.measured)
                for other in self._workers[1:]:
                    other.expected = worker.header
                    other.take_measured(self._measured)
                return worker.header

    def run(self, on_result: OnResult, *, on_start: OnStart, places: Iterable[Place]) -> None:
        """Run the checks at ``places`` and report each result as it arrives; with several workers, in any order.

        Raises :class:`~gradconform.exits.RunStoppedError` if the run is given up, and ``KeyboardInterrupt`` if it is
        interrupted.
        """
        self._waiting.extend(places)
        shares = -(-len(self._waiting) // _AT_A_TIME)
        needed = max(1, min(self._count, shares))
        for unneeded in self._workers[needed:]:
            self._end(unneeded)
        self._workers = self._workers[:needed] + [self._start() for _ in range(needed - len(self._workers))]
        try:
            left = 0
            while self._waiting or any(worker.given for worker in self._workers):
                if self._budget.spent:  # finish the batches, and watch their workers
                    left += len(self._waiting)
                    self._waiting.clear()
                self._give()
                wait_for([worker.process for worker in self._workers])
                for number in range(len(self._workers)):
                    self._attend(number, on_result, on_start)
            self._hear_the_last(on_result)
            if left:
                raise self._budget.stopped(left)
        except RunRefusedError as error:
            msg = f"a new worker could not continue the run: {error}"
            raise RunStoppedError(msg, error.exit_code) from error
        finally:
            self.close()

    def close(self) -> None:
        """End all workers, and remove their input files."""
        while self._live:
            self._end(self._live[0])
        self._orphans.close()
        if self._measured is not None:
            self._measured.unlink(missing_ok=True)

    def _start(self, *, waits: bool = False) -> CheckWorker:
        """Start a worker; its number is the first free one, so that workers share devices evenly.

        One that ``waits`` makes no plan before it gets the measurements of another one.
        """
        taken = {worker.number for worker in self._live}
        number = next(number for number in itertools.count() if number not in taken)
        measured = None if self._measured is None else str(self._measured)
        left = self._budget.left if self._expected is None else None
        given = {**self._options, "worker": number, "measured": measured, "waits": waits, "seconds": left}
        given["paced"] = self._paced and number == 0 and self._expected is None
        process = Worker("gradconform.workers.serving:serve", given, imports=_IMPORTS)
        self._live.append(CheckWorker(process, number, self._limit, self._start_limit, self._expected, waits=waits))
        process.expect(self._start_limit)
        return self._live[-1]

    def _end(self, worker: CheckWorker) -> None:
        worker.process.close()
        self._live.remove(worker)
        self._orphans.end()

    def _give(self) -> None:
        """Give more checks to each worker that is nearly done; a single worker gets all of them."""
        for worker in self._workers:
            if self._waiting and len(worker.given) <= 1:
                most = _AT_A_TIME if len(self._workers) > 1 else len(self._waiting)
                count = min(most if self._budget.seconds is None else _WITHIN_TIME, len(self._waiting))
                worker.give([self._waiting.popleft() for _ in range(count)])

    def _attend(self, number: int, on_result: OnResult, on_start: OnStart) -> None:
        """Report a worker's messages, and replace the worker if it ended."""
        worker = self._workers[number]
        for heard in worker.listen():
            if isinstance(heard, Ending):
                self._replace(number, worker, heard, on_result)
            elif heard.status == "not_run":
                on_start(heard)
            else:
                self._early_ends = 0
                on_result(heard)
        _withdraw(worker, on_result)

    def _hear_the_last(self, on_result: OnResult) -> None:
        """Request the canaries of each worker that has judged; one that has ended has already reported its own."""
        judged = [worker for worker in self._workers if worker.judged]
        for worker in judged:
            worker.part()
        for worker in judged:
            while worker.owes and worker.disbelieved is None:
                wait_for([worker.process])
                for heard in worker.listen():
                    if isinstance(heard, Ending):
                        worker.owes.clear()
                        worker.disbelieved = SILENT if heard.kind == "hang" else worker.disbelieved
            _withdraw(worker, on_result)

    def _replace(self, number: int, worker: CheckWorker, ending: Ending, on_result: OnResult) -> None:
        """Replace a worker that ended; checks that it had not begun are first in the queue again."""
        result = None
        if worker.begun is None:
            self._workers[number] = self._replace_unused(worker, ending)
        else:
            result, self._workers[number] = self._run_again(worker, ending)
            worker.given.remove(result.place)
        self._waiting.extendleft(reversed(worker.given))
        if result is not None:
            on_result(result)
            self._give_up_in_time(result)

    def _give_up_in_time(self, last: Result) -> None:
        """Count a check that ended its process, and its time, against the limit of the whole run.

        Raises :class:`~gradconform.exits.RunStoppedError` if the limit is exceeded and checks remain.
        """
        self._crashes += 1
        self._lost += last.duration_s
        allowed = self._options["options"]["max_crashes"]
        limits = [f"--max-crashes allows {allowed}"] if self._crashes >= allowed else []
        limits += [f"--max-lost-time allows {self._may_lose:g} s"] if self._lost >= self._may_lose else []
        if limits and (self._waiting or any(worker.given for worker in self._workers)):
            ended = f"{count(self._crashes, 'check')} ended {'its' if self._crashes == 1 else 'their'} process"
            msg = f"{ended} and took {self._lost:.0f} s, the last was {last.place.name}; {' and '.join(limits)}"
            raise RunStoppedError(msg)

    def _replace_unused(self, worker: CheckWorker, ending: Ending) -> CheckWorker:
        """Return a replacement for a worker that was running no check.

        Raises :class:`~gradconform.exits.RunStoppedError` if this repeats, or if the worker hung: a retry would take
        too long.
        """
        if ending.kind == "hang":
            raise RunStoppedError("\n".join([ending.text, *ending.details]), EXIT_ENVIRONMENT)
        self._early_ends += 1
        if self._early_ends >= _MAX_EARLY_ENDS:
            reported = "\n".join([ending.text, *ending.details])
            msg = f"{_MAX_EARLY_ENDS} workers in a row ended before their first check: {reported}"
            raise RunStoppedError(msg)
        self._end(worker)
        return self._start()

    def _run_again(self, worker: CheckWorker, first: Ending) -> tuple[Result, CheckWorker]:
        """Return the result of the check in which ``worker`` ended, and a worker for the rest.

        The check runs again alone in a worker, and with plain autograd in place of the target.
        """
        begun = worker.begun
        assert begun is not None  # noqa: S101 (for the type: idle workers are replaced)
        place = begun.place
        self._end(worker)
        tries = self._tries_after_a_hang if first.kind == "hang" else self._tries_after_a_crash
        again, oracle, following = tries(place, first)
        lost = round(time.monotonic() - worker.begun_at, 6)
        result = charged(begun, first, again, oracle)
        result = replace(result, ended=first.kind, duration_s=lost, time_limit=first.limit)
        return (result if result.findings else self._waived(result)), following

    def _tries_after_a_crash(self, place: Place, first: Ending) -> _Tries:
        """Run the check again; if it ends this worker too, run it with plain autograd."""
        # Start it now: both workers are usually needed, and importing torch takes most of the time.
        spare = self._start() if first.kind == "crash" else None
        again, following = self._alone(self._start(), place, oracle=False)
        if isinstance(again, Result):
            if spare is not None:
                self._end(spare)
            return again, None, following
        self._end(following)
        oracle, following = self._alone(spare or self._start(), place, oracle=True)
        return again, oracle, self._other_than(following, oracle)

    def _tries_after_a_hang(self, place: Place, first: Ending) -> _Tries:
        """Run the check with plain autograd, and then again, with a time limit that follows from plain autograd's time.

        So only the first try takes the whole limit. If plain autograd ends its worker too, the target is not tried.
        """
        oracle, following = self._alone(self._start(), place, oracle=True)
        if isinstance(oracle, Ending):
            return first, oracle, self._other_than(following, oracle)
        self._end(following)
        following = self._start()
        following.limit = min(self._limit, max(_LEAST_AGAIN, _TIMES_PLAIN * oracle.duration_s))
        again, following = self._alone(following, place, oracle=False)
        following.limit = self._limit
        return again, oracle, self._other_than(following, again)

    def _other_than(self, worker: CheckWorker, outcome: Result | Ending) -> CheckWorker:
        """Return ``worker``, or a new one if its check ended it."""
        if isinstance(outcome, Result):
            return worker
        self._end(worker)
        return self._start()

    def _alone(self, worker: CheckWorker, place: Place, *, oracle: bool) -> tuple[Result | Ending, CheckWorker]:
        """Return the outcome of one check in a worker that runs nothing else, and the worker."""
        worker.give([place], oracle=oracle, again=True)
        while True:
            wait_for([worker.process])
            for heard in worker.listen():
                if isinstance(heard, Ending) and worker.begun is None:
                    worker = self._replace_unused(worker, heard)
                    worker.give([place], oracle=oracle, again=True)
                elif isinstance(heard, Ending):
                    return heard, worker
                elif heard.status != "not_run":
                    return (heard if worker.disbelieved is None else withdrawn(heard, worker.disbelieved)), worker

    def _waived(self, result: Result) -> Result:
        """Apply the run's waivers to a result that no worker made, as a worker would have."""
        record = self.header.report["waivers"]
        return result if record is None else Waivers.from_record(record).apply(result)


def _kept(measured: Mapping[str, Any]) -> Path:
    """Write the measurements for the plan to a file for later workers, and return its path."""
    file, name = tempfile.mkstemp(prefix="gradconform-plan-", suffix=".json")
    with os.fdopen(file, "w", encoding="utf-8") as opened:
        json.dump(measured, opened)
    return Path(name)


def _withdraw(worker: CheckWorker, on_result: OnResult) -> None:
    """Report the results of an untrustworthy worker again, as errors."""
    while worker.disbelieved is not None and worker.judged:
        on_result(withdrawn(worker.judged.pop(0), worker.disbelieved))
