"""The ranks of this machine: torch's launcher starts them on a job, and this module follows them to their end.

Nothing here imports torch; only the started processes do.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from gradconform.process.wait_notices import waiting
from gradconform.process.worker import Exit, Worker, ask_for_stacks
from gradconform.text.counts import count
from gradconform.user_input.values import SelectionError

from .exchange import Mark, Outcome, read_mark, read_outcomes, remove
from .start_folder import Start, end_all
from .verdicts import Ended

_PERIOD_S = 0.05
#: The time in seconds for the ranks to start and to end, in addition to their cases.
_AROUND_S = 120
#: The extra time before ending a rank that waits outside the implementation: the rank that it waits for is ended first.
#: It is less than the time for which the process group waits longer than a case.
_GRACE_S = 4.0
#: The time in seconds for ranks to end alone after a case ended one of them; a stopped rank never does.
_ENDING_S = 2.0
#: The load for each rank and core of a machine from which on it may be too busy for any time limit.
_OVERLOAD = 2.0
#: The most lines of a rank's last output in a message.
_LINES = 30


class RankCase(Protocol):
    """One case of a job: the ranks write their outcomes under its id."""

    @property
    def id(self) -> str:
        """The id, unique in the job."""


class RankJob(Protocol):
    """The work of every rank: some cases in order."""

    @property
    def cases(self) -> Sequence[Any]:
        """The cases."""

    def limit(self, case: Any) -> float:
        """Return the time limit of a case in seconds."""

    def to_json(self) -> str:
        """Return the job as JSON text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The number of ranks and their place: ``ranks`` of all machines together, and their common ``endpoint``.

    ``endpoint`` is ``host:port``, the same on every machine, and ``run`` is a name that they share.
    """

    ranks: int
    machines: int = 1
    endpoint: str = "localhost:0"
    run: str = ""

    @classmethod
    def of(cls, options: Any, ranks: int, number: int | None = None) -> Machines:
        """Return the machines that options name, for a number of ranks.

        Runs of other numbers of ranks, each with its ``number``, meet at ports counted from the given one: a machine
        that is still finishing may hold the previous port.
        """
        found = cls(ranks=ranks, machines=options.nnodes, endpoint=options.rdzv_endpoint, run=options.rdzv_id)
        if options.nnodes > 1 and number is not None:
            host, _, port = found.endpoint.rpartition(":")
            found = replace(found, endpoint=f"{host}:{int(port) + number}", run=f"{found.run}-{ranks}")
        return found

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


def refuse_machines(options: Any, ranks: int, what: str) -> None:
    """Raise if the machines cannot have equal numbers of ranks, or have no endpoint to meet at."""
    if ranks % options.nnodes:
        msg = f"{what} cannot be divided evenly by --nnodes {options.nnodes}; change one of the numbers"
        raise SelectionError(msg)
    host, _, port = options.rdzv_endpoint.rpartition(":")
    if options.nnodes > 1 and not (host and port.isdecimal() and int(port)):
        where = "a machine and a free port on it"
        got = repr(options.rdzv_endpoint)
        msg = f"--nnodes {options.nnodes} requires --rdzv-endpoint HOST:PORT, {where}; got {got}"
        raise SelectionError(msg)


class Launcher:
    """Torch's launcher, whose keeper starts the ranks of this machine; it is replaced if it has ended."""

    def __init__(self, machines: Machines) -> None:
        """Create without a process."""
        self.machines = machines
        self._launched = 0
        self._ranks: Ranks | None = None

    def start(self, job: RankJob) -> Ranks:
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

    def _launch(self, job: RankJob) -> Ranks:
        folder = Path(tempfile.gettempdir(), f"gradconform-{uuid.uuid4().hex}")
        options = self.machines.launch_options(self._launched)
        given = {"folder": str(folder), "job": job.to_json(), "options": options, "here": self.machines.here}
        self._launched += 1
        launcher = "gradconform.pipeline.launcher"
        process = Worker(f"{launcher}:launch", given, quiet=True, imports=("torch", launcher))
        return Ranks(process, Start(folder, 0), self.machines, _limits(job))

    def finish(self) -> None:
        """Let keeper and launcher end in order, as those of other machines expect it."""
        if self._ranks is not None:
            self._ranks.finish()

    def close(self) -> None:
        """End everything, and leave nothing behind."""
        if self._ranks is not None:
            self._ranks.launcher.close()
            remove(self._ranks.start.within)


def _limits(job: RankJob) -> dict[str, float]:
    return {case.id: job.limit(case) for case in job.cases}


@dataclass(slots=True)
class Ranks:
    """The ranks of this machine in one start, under torch's launcher; ``limits`` are in seconds, by case."""

    launcher: Worker
    start: Start
    machines: Machines
    limits: Mapping[str, float]
    _hung: dict[int, tuple[Mark, str]] = field(default_factory=dict, init=False)  # each rank's mark and its stacks
    _exit: Exit | None = field(default=None, init=False)
    _overload: str = field(default="", init=False)

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

    def follow(self, case: RankCase) -> list[Outcome]:
        """Return the outcomes of a case once every rank has one; fewer if ranks ended or hung, or one raised."""
        self.launcher.expect(self.limits[case.id] + _AROUND_S)
        while True:
            ended = self.gone or bool(self.start.exits())  # read first: earlier outcomes are read below
            found = self._outcomes(case)
            stops = any(outcome.raised or outcome.refused for outcome in found)
            if self.hung or len(found) == self.machines.ranks or ended or stops:
                return found
            self._look()

    def ended(self, case: RankCase) -> Ended:
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
            launcher=_end_of_all(self._exit) if self._exit is not None and not codes else "",
            overload=self._overload,
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
                self._overload = self._overload or _overload_of(self.machines.ranks)
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

    def _outcomes(self, case: RankCase) -> list[Outcome]:
        return self.outcomes(case.id)

    def outcomes(self, name: str) -> list[Outcome]:
        """Return what the ranks wrote under an id."""
        files = (self.start.folder / f"rank-{rank}.ndjson" for rank in range(self.machines.ranks))
        return [outcome for file in files for outcome in read_outcomes(file) if outcome.case == name]

    def _words(self, rank: int) -> str:
        """Return the last lines on standard error of a rank, or else of the keeper or the launcher."""
        logs = (self.start.within / "logs").glob("*/attempt_0/0/stderr.log")
        for file in (self.start.words_of(rank), *sorted(logs, reverse=True)):
            if file.is_file() and file.stat().st_size:
                return "\n".join(file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:])
        return "" if self._exit is None else self._exit.complaints


def _end_of_all(launcher: Exit) -> str:
    """Return how a launcher ended all its ranks; empty if it ended by itself."""
    if launcher.limit is not None:
        return f"the launcher and its ranks took longer than {launcher.limit:g} s, and were ended"
    return f"{launcher.words} ended the launcher and its ranks" if launcher.by_signal else ""


def _overload_of(ranks: int) -> str:
    """Return a sentence if this machine has far more work than ranks and cores explain; empty if not.

    A rank that hangs sleeps, or keeps one core busy.
    """
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < _OVERLOAD * (ranks + cores):
        return ""
    return f"nothing is charged: the machine has a load of {load:.0f} on {count(cores, 'core')}; --timeout allows more"
