"""Starts the ranks of this machine, follows what they write, and goes on with fresh ones where one ends a case.

Nothing here imports torch but what it starts.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradconform.process.orphans import Orphans
from gradconform.process.worker import Exit, Worker, ask_for_stacks
from gradconform.results import Result

from .cases import Case
from .exchange import Job, Mark, Outcome, read_mark, read_outcomes, remove
from .verdicts import Ended, Verdict, charged, verdict_of, verdict_on

#: What stands in the target's place to tell whether a failure is torch's runtime's, or the machine's.
REFERENCE = "reference-split"

#: How many cases in a row may end the ranks: a target that does so in every case would cost a start for each. More than
#: two schedules have: some releases of torch run none with two stages of a rank side by side on a CPU (2.9 to 2.11).
IN_A_ROW = 20

_PERIOD_S = 0.05
#: What the ranks may take to start, and to end, beside their cases, in seconds.
_AROUND_S = 120
#: How much later a rank is ended that waits outside the implementation: the one that it waits for comes first. Less
#: than what the process group waits for longer than a case.
_GRACE_S = 4.0
#: How long ranks have to end as the launcher asks them to, once one of them has ended a case, in seconds: one that is
#: stopped never does.
_ENDING_S = 3.0
#: How many lines a message holds of what a rank wrote last.
_LINES = 30

OnResult = Callable[[Result], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """How many ranks there are and where: ``ranks`` of all machines together, ``endpoint`` where they meet.

    ``endpoint`` is ``host:port``, the same on every machine, and ``run`` a name that they share.
    """

    ranks: int
    machines: int = 1
    endpoint: str = "localhost:0"
    run: str = ""

    @property
    def here(self) -> int:
        """The number of ranks on this machine."""
        return self.ranks // self.machines

    def launch_options(self, start: int) -> dict[str, object]:
        """Return the options of torch's launcher for the ``start``-th start of a run."""
        return {
            "min_nodes": self.machines,
            "max_nodes": self.machines,
            "nproc_per_node": self.here,
            "run_id": f"{self.run or uuid.uuid4().hex}-{start}",
            "rdzv_endpoint": self.endpoint,
            "local_addr": None if self.machines > 1 else "localhost",
        }


def run_pipeline(job: Job, machines: Machines, on_result: OnResult) -> str | None:
    """Run every case and hand its result to ``on_result``; return why the run stopped early, or None.

    What fails is run again with the kit's own correct split backward in the target's place, before it is told.
    """
    wrong: list[Verdict] = []

    def sort_out(found: Verdict) -> None:
        # Whoever died or hung outside the implementation is charged to nobody, whatever the reference does.
        asked = found.result.status == "failed" or (found.result.status == "error" and found.how == "raised")
        if asked and machines.machines == 1:
            wrong.append(found)
        else:
            on_result(found.result)

    with closing(Orphans()):
        stopped = _run_all(job, machines, sort_out)
        _tell_wrong(wrong, job, machines, on_result)
    return stopped


def _tell_wrong(wrong: list[Verdict], job: Job, machines: Machines, on_result: OnResult) -> None:
    """Tell what is wrong once the reference has run in the same cases."""
    if wrong:
        of_reference = _of_reference([found.result.check for found in wrong], job, machines)
        for found in wrong:
            on_result(charged(found, of_reference.get(found.result.check)))


def _of_reference(wrong: list[str], job: Job, machines: Machines) -> dict[str, Verdict]:
    """Return the verdicts on the reference in the cases with these ids."""
    cases = tuple(case for case in job.cases if case.id in wrong)
    found: list[Verdict] = []
    _run_all(replace(job, cases=cases, target=REFERENCE), machines, found.append, in_a_row=len(cases))
    return {one.result.check: one for one in found}


def _run_all(
    job: Job, machines: Machines, on_verdict: Callable[[Verdict], None], *, in_a_row: int = IN_A_ROW
) -> str | None:
    """Run every case; give up where so many ``in_a_row`` have ended the ranks."""
    left, start, ended = job.cases, 0, 0
    while ended < in_a_row:
        before = len(left)
        folder = Path(tempfile.gettempdir(), f"gradconform-{uuid.uuid4().hex}")
        try:
            for found in _one_start(replace(job, cases=left), machines, folder, start):
                on_verdict(found)
                left = left[1:]
        finally:
            remove(folder)
        if not left:
            return None
        start, ended = start + 1, ended + 1 if before - len(left) == 1 else 1
        if machines.machines > 1:
            return "a rank ended; runs on several machines are not started afresh"
    return f"ranks ended early in {in_a_row} cases in a row"


def _one_start(job: Job, machines: Machines, folder: Path, start: int) -> Iterator[Verdict]:
    """Start the ranks once; yield the verdict on each case, the last of them on the one they ended in."""
    given = {"folder": str(folder), "job": job.to_json(), "options": machines.launch_options(start)}
    with closing(Worker("gradconform.pipeline.launcher:launch", given, quiet=True)) as launcher:
        ranks = _Ranks(launcher, folder, machines.ranks, job.timeout)
        for case in job.cases:
            outcomes = ranks.follow(case)
            if any(outcome.raised for outcome in outcomes) or len(outcomes) < machines.ranks:
                yield verdict_on(case, ranks.ended(case), job)
                return
            yield verdict_of(case, outcomes, job)
        ranks.wait()


@dataclass(slots=True)
class _Ranks:
    """The ranks of this machine, under torch's launcher; ``count`` are those of all machines."""

    launcher: Worker
    folder: Path
    count: int
    timeout: float
    _hung: dict[int, str] = field(default_factory=dict)
    _codes: dict[int, int] = field(default_factory=dict)
    _exit: Exit | None = None

    def follow(self, case: Case) -> list[Outcome]:
        """Return the outcomes of a case once every rank has one; fewer where the ranks are gone, or one raised."""
        self.launcher.expect(self.timeout + _AROUND_S)
        while True:
            gone = self._exit is not None  # asked first: what ranks wrote before they ended is read below
            found = self._outcomes(case)
            if len(found) == self.count or gone or any(outcome.raised for outcome in found):
                return found
            self._look()

    def ended(self, case: Case) -> Ended:
        """Wait for the end of all ranks, and return how they ended in a case; those that take their time are killed."""
        self.launcher.expect(_AROUND_S)
        until = time.monotonic() + _ENDING_S
        while self._exit is None:
            self._look()
            if time.monotonic() > until:
                self._kill(self._marks())
                until = math.inf
        words = {rank: self._words(rank) for rank in range(self.count)}
        return Ended(
            marks=self._marks(), outcomes=self._outcomes(case), hung=self._hung, codes=self._codes, words=words
        )

    def wait(self) -> None:
        """Wait for the end of all ranks."""
        self.launcher.expect(_AROUND_S)
        while self._exit is None:
            self._look()

    def _look(self) -> None:
        """Take what the launcher says, and end the ranks that hang."""
        time.sleep(_PERIOD_S)
        for heard in self.launcher.listen():
            if isinstance(heard, Exit):
                self._exit = heard
                return
            self._codes = {int(rank): code for rank, code in heard["failed"].items()}
        marks = self._marks()
        late = [rank for rank, mark in marks.items() if rank not in self._hung and self._is_late(mark)]
        for rank in late:
            with (self.folder / f"rank-{rank}.stack").open("rb") as file:
                ask_for_stacks(marks[rank].process, file)
                self._hung[rank] = file.read().decode(errors="replace")
        self._kill({rank: marks[rank] for rank in late})

    def _kill(self, marks: Mapping[int, Mark]) -> None:
        for mark in marks.values():
            with suppress(ProcessLookupError):
                os.kill(mark.process, signal.SIGKILL)

    def _is_late(self, mark: Mark) -> bool:
        limit = self.timeout + (0.0 if mark.inside else _GRACE_S)
        return bool(mark.case) and time.monotonic() - mark.since > limit

    def _marks(self) -> dict[int, Mark]:
        """Return the last mark of each rank of this machine that got so far."""
        found = {rank: read_mark(self.folder / f"rank-{rank}.mark") for rank in range(self.count)}
        return {rank: mark for rank, mark in found.items() if mark is not None}

    def _outcomes(self, case: Case) -> list[Outcome]:
        files = (self.folder / f"rank-{rank}.ndjson" for rank in range(self.count))
        return [outcome for file in files for outcome in read_outcomes(file) if outcome.case == case.id]

    def _words(self, rank: int) -> str:
        """Return the last lines that a rank, or else the launcher, wrote to its standard error."""
        files = sorted((self.folder / "logs").glob(f"*/attempt_0/{rank}/stderr.log"))
        if not files:
            return "" if self._exit is None else self._exit.complaints
        return "\n".join(files[-1].read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:])
