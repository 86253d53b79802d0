"""Messages between a run and its ranks, through files in one folder: the job, outcomes of cases, and marks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gradconform.diagnosis.cause import cause_from
from gradconform.judge.finding import Finding
from gradconform.process.forks import OneProcess
from gradconform.results import python_names

from .cases import Case
from .training_step.composition import StepCase

#: The factor on the time limit of a training step with compiled stages, which every rank compiles again.
_COMPILING = 4.0
_WIDTH = 512  # one call overwrites the earlier mark, so that a reader never sees half of two


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work of every rank: ``target`` as a user names it, ``cases`` in order.

    ``timeout`` is in seconds, per case; :meth:`limit` gives longer limits of some cases. The target is torch's three
    functions, or, with ``runtime``, an object that runs whole steps. With ``fixed``, the right split is put into torch.
    ``plugins`` are modules that make the device usable, and ``reads_views`` says how its views are read; ``backend`` is
    the ranks' communication backend. ``process`` is the module that a rank runs.
    """

    target: str
    cases: tuple[Case | StepCase, ...]
    device: str
    dtype: str
    seed: int
    timeout: float
    runtime: bool = False
    fixed: bool = False
    plugins: tuple[str, ...] = ()
    reads_views: str = "copy"
    backend: str = "gloo"
    process: str = "gradconform.pipeline.rank_process"

    def limit(self, case: Case | StepCase) -> float:
        """Return the time limit of a case in seconds."""
        compiles = isinstance(case, StepCase) and case.composition.compiled
        return self.timeout * (_COMPILING if compiles else 1.0)

    def to_json(self) -> str:
        """Return the job as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that :meth:`to_json` wrote."""
        values = json.loads(text)
        several = {"cases": tuple(map(_case_of, values["cases"])), "plugins": tuple(values["plugins"])}
        return cls(**{**values, **several})


def _case_of(values: dict[str, Any]) -> Case | StepCase:
    """Return the case from its JSON values; a training step is recognised by its row."""
    if "row" in values:
        return StepCase(**{**values, "row": tuple(values["row"])})
    return Case(**{**values, "rows": tuple(map(tuple, values["rows"]))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one case on one rank.

    ``raised`` is an exception with its traceback, ``cause`` its first cause in a line, ``at`` the time then in seconds.
    ``unsupported`` is the reason why it was not tried. ``refused`` is a mistake of the user's input that only the ranks
    can see, which ends the run.
    """

    case: str
    rank: int
    findings: tuple[Finding, ...] = ()
    error_ratio: float | None = None
    bit_equal: bool | None = None
    duration_s: float = 0.0
    raised: str | None = None
    cause: str = ""
    at: float = 0.0
    unsupported: str | None = None
    refused: str | None = None

    def to_line(self) -> str:
        """Return the outcome as one line of JSON."""
        return json.dumps({**asdict(self), "findings": [one.to_dict() for one in self.findings]}) + "\n"


def read_outcomes(path: Path) -> Iterator[Outcome]:
    """Yield the whole lines of a rank's file; a line that the rank was writing when it died is skipped."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            values = json.loads(line)
            yield Outcome(**{**values, "findings": tuple(map(_finding_of, values["findings"]))})


def _finding_of(values: dict[str, Any]) -> Finding:
    cause = None if values["cause"] is None else cause_from(values["cause"])
    return Finding(**{**python_names(values), "cause": cause})


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A rank's progress, readable after it died: case, action, and whether the implementation is running.

    ``process`` is the rank's process id. ``since`` is the case's start there, as ``time.monotonic`` gives it.
    """

    case: str = ""
    action: str = ""
    inside: bool = False
    process: int = 0
    since: float = 0.0


class Marker:
    """Writes the marks of one rank: one small file, overwritten in place."""

    def __init__(self, path: Path) -> None:
        """Open the file; it stays open as long as the process lives."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._now = Mark(process=os.getpid(), since=time.monotonic())

    def begin(self, case: str) -> None:
        """Mark that a case begins."""
        self._put(Mark(case=case, process=self._now.process, since=time.monotonic()))

    def note(self, action: str) -> None:
        """Mark the current action; the implementation under test may also mark its own progress."""
        self._put(replace(self._now, action=action))

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Mark that the implementation under test runs; the mark stays if it raises.

        Raises :class:`~gradconform.process.forks.ForkedError` if it forks and its call returns in the child as well,
        which would use this rank's connections.
        """
        self._put(replace(self._now, inside=True))
        with OneProcess():
            yield
        self._put(replace(self._now, inside=False))

    def _put(self, mark: Mark) -> None:
        self._now = mark
        os.pwrite(self._file, json.dumps(asdict(mark)).ljust(_WIDTH).encode(), 0)


def read_mark(path: Path) -> Mark | None:
    """Return the last mark of a rank, or None if it never wrote one."""
    try:
        return Mark(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def remove(folder: Path) -> None:
    """Remove the folder of ranks that may still be writing: it is renamed first, so that they no longer find it."""
    ended = folder.with_name(f"{folder.name}-ended")
    with contextlib.suppress(OSError):
        folder.rename(ended)
    shutil.rmtree(ended, ignore_errors=True)
