"""Starts the ranks of this machine, reads their outcomes, and restarts them after a case that ended them.

Nothing here imports torch; only the started processes do.
"""

from __future__ import annotations

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
from gradconform.process.wait_notices import waiting
from gradconform.process.worker import Exit, Worker, ask_for_stacks
from gradconform.results import Result

from .cases import Case
from .exchange import Job, Mark, Outcome, read_mark, read_outcomes, remove
from .start_folder import Start, end_all
from .training_step.composition import StepCase
from .verdicts import Ended, Verdict, charged, compared_with_unchanged_torch, of_split, verdict_of, verdict_on

#: The implementation that replaces the target to decide whether torch's runtime or the machine is at fault.
REFERENCE = "reference-split"
#: The replacements of the right split for the same decision, which share none of its code in I and W. One is the
#: plainest split, which runs hooks of parameters in W as a wrapper requires. The other does one backward in I and keeps
#: nothing until W.
PLAIN = ("gradconform.reference.walked_twice", "gradconform.reference.whole_in_input")
#: The number of plain runs before a failure is charged to the split.
_PLAIN_RUNS = 3

#: The most cases in a row that may end the ranks: a target that always does would cost a start for each. It is more
#: than two schedules have: some releases of torch (2.9 to 2.11) cannot run two stages of a rank side by side on a CPU.
IN_A_ROW = 20

_PERIOD_S = 0.05
#: The time in seconds for the ranks to start and to end, in addition to their cases.
_AROUND_S = 120
#: The extra time before ending a rank that waits outside the implementation: the rank that it waits for is ended first.
#: It is less than the time for which the process group waits longer than a case.
_GRACE_S = 4.0
#: The time in seconds for ranks to end alone after a case ended one of them; a stopped rank never does.
_ENDING_S = 2.0
#: The most lines of a rank's last output in a message.
_LINES = 30

OnResult = Callable[[Result], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The number of ranks and their place: ``ranks`` of all machines together, and their common ``endpoint``.

    ``endpoint`` is ``host:port``, the same on every machine, and ``run`` is a name that they share.
    """

    ranks: int
    machines: int = 1
    endpoint: str = "localhost:0"
    run: str = ""

    @property
    def here(self) -> int:
        """Return the number of ranks on this machine."""
        return self.ranks // self.machines

    def launch_options(self, start: int) -> dict[str, object]:
        """Return the options of torch's launcher for the ``start``-th start of a run: one keeper on each machine."""
        return {
            "min_nodes": self.machines,
            "max_nodes": self.machines,
            "nproc_per_node": 1,
            "run_id": f"{self.run or uuid.uuid4().hex}-{start}",
            "rdzv_endpoint": self.endpoint,
            "local_addr": None if self.machines > 1 else "localhost",
        }


def run_pipeline(job: Job, machines: Machines, on_result: OnResult, on_start: OnResult = lambda _: None) -> str | None:
    """Run every case and pass its result to ``on_result``; return why the run stopped early, or None.

    ``on_start`` receives each case as it begins on the target, as a ``not_run`` result.

    Before a failed case is reported, it is run again with the kit's correct split backward in place of the target,
    unless the target runs whole steps. With the right split in torch, unmodified torch is run first, and failures are
    run again with the plain implementations.
    """
    wrong: list[Verdict] = []

    with closing(Orphans()), closing(_Launcher(machines)) as launcher:
        before = _verdicts(replace(job, fixed=False), launcher) if job.fixed and machines.machines == 1 else {}

        def report(result: Result) -> None:
            on_result(compared_with_unchanged_torch(result, before.get(result.check)))

        def sort_out(found: Verdict) -> None:
            # A death or hang outside the implementation is never charged to it, whatever the reference does.
            needs_reference = found.result.status == "failed" or (
                found.result.status == "error" and found.how == "raised"
            )
            if needs_reference and machines.machines == 1 and (job.fixed or not job.runtime):
                wrong.append(found)
            else:
                report(found.result)

        stopped = _run_all(job, launcher, sort_out, on_start=on_start)
        with waiting("running the failed checks again with a correct split"):
            _report_wrong(wrong, job, launcher, report)
        launcher.finish()
    return stopped


def _report_wrong(wrong: list[Verdict], job: Job, launcher: _Launcher, on_result: OnResult) -> None:
    """Report the failures after running the reference in the same cases."""
    if not wrong:
        return
    cases = {case.id: case for case in job.cases}
    if job.fixed:
        _report_owner(wrong, cases, job, launcher, on_result)
        return
    own = {found.result.check: found for found in wrong}
    of_reference = own if job.target == REFERENCE else _verdicts_on(REFERENCE, list(own), job, launcher)
    for found in wrong:
        check = found.result.check
        on_result(charged(found, of_reference.get(check), cases[check]))


def _report_owner(
    wrong: list[Verdict], cases: Mapping[str, Case | StepCase], job: Job, launcher: _Launcher, on_result: OnResult
) -> None:
    """Report failures with the right split in torch, and whether all plain replacements share them.

    Other failures are run again: if the runtime reads unwritten memory, every run shows other tensors.
    """
    left = wrong
    runs: dict[str, dict[str, list[Verdict]]] = {found.result.check: {name: [] for name in PLAIN} for found in wrong}
    results: dict[str, Result] = {}
    for _ in range(_PLAIN_RUNS):
        for name in PLAIN:
            for check, verdict in _verdicts_on(name, [found.result.check for found in left], job, launcher).items():
                runs[check][name].append(verdict)
        for found in left:
            check = found.result.check
            results[check] = of_split(found, list(runs[check].values()), cases[check])
        left = [found for found in left if results[found.result.check].of_runtime is False]
        if not left:
            break
    for found in wrong:
        on_result(results[found.result.check])


def _verdicts_on(reference: str, wrong: list[str], job: Job, launcher: _Launcher) -> dict[str, Verdict]:
    """Return the verdicts on a reference in the cases with these ids."""
    cases = tuple(case for case in job.cases if case.id in wrong)
    again = replace(job, cases=cases, target=reference, runtime=False, fixed=False)
    return _verdicts(again, launcher, in_a_row=len(cases))


def _verdicts(job: Job, launcher: _Launcher, *, in_a_row: int = IN_A_ROW) -> dict[str, Verdict]:
    """Return the verdicts on a job's cases by id, up to the point at which ``in_a_row`` cases have ended the ranks."""
    found: list[Verdict] = []
    _run_all(job, launcher, found.append, in_a_row=in_a_row)
    return {one.result.check: one for one in found}


def _run_all(
    job: Job,
    launcher: _Launcher,
    on_verdict: Callable[[Verdict], None],
    *,
    on_start: OnResult = lambda _: None,
    in_a_row: int = IN_A_ROW,
) -> str | None:
    """Run every case; give up after ``in_a_row`` cases in a row have ended the ranks."""
    left, ended = job.cases, 0
    while ended < in_a_row:
        before = len(left)
        for found in _one_start(replace(job, cases=left), launcher, on_start):
            on_verdict(found)
            left = left[1:]
        if not left:
            return None
        ended = ended + 1 if before - len(left) == 1 else 1
        if launcher.never_met:
            return f"ranks hang before their first case, at {launcher.never_met}"
        if launcher.machines.machines > 1:
            return "a rank ended; runs on several machines are not started afresh"
    return f"ranks ended early in {in_a_row} cases in a row"


def _one_start(job: Job, launcher: _Launcher, on_start: OnResult) -> Iterator[Verdict]:
    """Start the ranks once; yield the verdict on each case; the last one may be the case in which they ended."""
    ranks = launcher.start(job)
    for case in job.cases:
        on_start(case.result(job.device, job.dtype, status="not_run"))
        outcomes = ranks.follow(case)
        if ranks.hung or any(outcome.raised for outcome in outcomes) or len(outcomes) < launcher.machines.ranks:
            yield verdict_on(case, ranks.ended(case), job)
            return
        yield verdict_of(case, outcomes, job)
    ranks.wait()


class _Launcher:
    """Torch's launcher, whose keeper starts the ranks of this machine; it is replaced if it has ended."""

    def __init__(self, machines: Machines) -> None:
        """Create without a process."""
        self.machines = machines
        self._launched = 0
        self._ranks: _Ranks | None = None

    def start(self, job: Job) -> _Ranks:
        """Start the ranks on a job."""
        if self._ranks is None or self._ranks.gone:
            self.close()
            self._ranks = self._launch(job)
        else:
            start = Start(self._ranks.start.within, self._ranks.start.number + 1)
            start.begin(job.to_json())
            self._ranks = replace(self._ranks, start=start, limits=_limits(job))
        return self._ranks

    @property
    def never_met(self) -> str:
        """Return the action of a rank of the last start that hung before the first case; empty if none did."""
        return "" if self._ranks is None else self._ranks.never_met

    def _launch(self, job: Job) -> _Ranks:
        folder = Path(tempfile.gettempdir(), f"gradconform-{uuid.uuid4().hex}")
        options = self.machines.launch_options(self._launched)
        given = {"folder": str(folder), "job": job.to_json(), "options": options, "here": self.machines.here}
        self._launched += 1
        launcher = "gradconform.pipeline.launcher"
        process = Worker(f"{launcher}:launch", given, quiet=True, imports=("torch", launcher))
        return _Ranks(process, Start(folder, 0), self.machines, _limits(job))

    def finish(self) -> None:
        """Let keeper and launcher end in order, as those of other machines expect it."""
        if self._ranks is not None:
            self._ranks.finish()

    def close(self) -> None:
        """End everything, and leave nothing behind."""
        if self._ranks is not None:
            self._ranks.launcher.close()
            remove(self._ranks.start.within)


def _limits(job: Job) -> dict[str, float]:
    return {case.id: job.limit(case) for case in job.cases}


@dataclass(slots=True)
class _Ranks:
    """The ranks of this machine in one start, under torch's launcher; ``limits`` are in seconds, by case."""

    launcher: Worker
    start: Start
    machines: Machines
    limits: Mapping[str, float]
    _hung: dict[int, tuple[Mark, str]] = field(default_factory=dict, init=False)  # each rank's mark and its stacks
    _exit: Exit | None = field(default=None, init=False)

    @property
    def gone(self) -> bool:
        """Whether the launcher has ended."""
        return self._exit is not None

    @property
    def hung(self) -> bool:
        """Whether a rank exceeded its time; it may have ended since, because the stack request wakes a sleeper."""
        return bool(self._hung)

    @property
    def never_met(self) -> str:
        """Return the action of a rank that hung before the first case; empty if none did."""
        return next((mark.action for mark, _ in self._hung.values() if not mark.case), "")

    def follow(self, case: Case | StepCase) -> list[Outcome]:
        """Return the outcomes of a case once every rank has one; fewer if ranks ended or hung, or one raised."""
        self.launcher.expect(self.limits[case.id] + _AROUND_S)
        while True:
            ended = self.gone or bool(self.start.exits())  # read first: earlier outcomes are read below
            found = self._outcomes(case)
            if self.hung or len(found) == self.machines.ranks or ended or any(outcome.raised for outcome in found):
                return found
            self._look()

    def ended(self, case: Case | StepCase) -> Ended:
        """Wait for the end of all ranks, and return how they ended in a case; slow ones are killed."""
        until = time.monotonic() + _ENDING_S
        self._wait(lambda: self.start.end() if time.monotonic() > until else None)
        codes = {rank: code for rank, code in self.start.exits().items() if code is not None}
        words = {rank: self._words(rank) for rank in range(self.machines.ranks)}
        return Ended(
            marks={**self._marks(), **{rank: mark for rank, (mark, _) in self._hung.items()}},
            outcomes=self._outcomes(case),
            hung={rank: stacks for rank, (_, stacks) in self._hung.items()},
            codes=codes,
            words=words,
            launcher=self._exit.words if self._exit is not None and self._exit.by_signal and not codes else "",
        )

    def wait(self) -> None:
        """Wait for the end of all ranks."""
        self._wait(lambda: None)

    def _wait(self, hurry: Callable[[], None]) -> None:
        self.launcher.expect(_AROUND_S)
        with waiting("waiting for the ranks to end", _AROUND_S):
            while not self.gone and len(self.start.exits()) < self.machines.here:
                self._look()
                hurry()

    def finish(self) -> None:
        """Let the launcher end: no start follows."""
        if not self.gone:
            end_all(self.start.within)
        while not self.gone:
            self._look()

    def _look(self) -> None:
        """Check whether the launcher has ended, and end the ranks that hang."""
        time.sleep(_PERIOD_S)
        for heard in self.launcher.listen():
            if isinstance(heard, Exit):
                self._exit = heard
                return
        for rank, mark in self._marks().items():
            if rank not in self._hung and self._is_late(mark):
                self._hung[rank] = mark, self._stack(rank, mark)
                with suppress(ProcessLookupError):
                    os.kill(mark.process, signal.SIGKILL)

    def _stack(self, rank: int, mark: Mark) -> str:
        with (self.start.folder / f"rank-{rank}.stack").open("rb") as file:
            ask_for_stacks(mark.process, file)
            return file.read().decode(errors="replace")

    def _is_late(self, mark: Mark) -> bool:
        limit = self.limits.get(mark.case, max(self.limits.values(), default=0.0))  # no case: they connect or leave
        return time.monotonic() - mark.since > limit + (0.0 if mark.inside else _GRACE_S)

    def _marks(self) -> dict[int, Mark]:
        """Return the last mark of each rank of this machine that has one."""
        folder = self.start.folder
        found = {rank: read_mark(folder / f"rank-{rank}.mark") for rank in range(self.machines.ranks)}
        return {rank: mark for rank, mark in found.items() if mark is not None}

    def _outcomes(self, case: Case | StepCase) -> list[Outcome]:
        files = (self.start.folder / f"rank-{rank}.ndjson" for rank in range(self.machines.ranks))
        return [outcome for file in files for outcome in read_outcomes(file) if outcome.case == case.id]

    def _words(self, rank: int) -> str:
        """Return the last lines on standard error of a rank, or else of the keeper or the launcher."""
        logs = (self.start.within / "logs").glob("*/attempt_0/0/stderr.log")
        for file in (self.start.words_of(rank), *sorted(logs, reverse=True)):
            if file.is_file() and file.stat().st_size:
                return "\n".join(file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:])
        return "" if self._exit is None else self._exit.complaints
