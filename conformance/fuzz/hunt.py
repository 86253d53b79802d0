"""The hunt: judges trials, remembers the smallest one of every defect, and passes by what is known already."""

from __future__ import annotations

import time

from gradconform.adapter import UnsupportedError
from gradconform.fuzz.defect import Defect, key_of, size_of
from gradconform.judge import whole
from gradconform.judge.finding import Finding
from gradconform.run import OracleError, Runner
from gradconform.trial import Trial


class DefectError(AssertionError):
    """Tells hypothesis that a trial fails. Every defect has a class of its own, so that each is shrunk by itself."""


class Hunt:
    """What was tried on one target, and what was found."""

    def __init__(self, runner: Runner, *, deadline: float | None = None) -> None:
        """Judge through ``runner``; from ``deadline`` on (of ``time.monotonic``) nothing is tried any more."""
        self.runner, self.deadline = runner, deadline
        self.trials = self.failing = self.refused = 0
        self.defects: list[Defect] = []
        self._fresh: dict[str, Defect] = {}
        self._classes: dict[str, type[DefectError]] = {}

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def attempt(self, trial: Trial) -> None:
        """Judge one trial; raise the :class:`DefectError` of a defect that is not known."""
        if self.over:
            return
        findings = self.judge(trial)
        if not findings:
            return
        self.failing += 1
        key = key_of(findings[0])
        if any(defect.explains(key, trial) for defect in self.defects):
            return
        if key not in self._fresh or size_of(trial) < self._fresh[key].size:
            self._fresh[key] = Defect(key, trial, tuple(findings))
        raise self._classes.setdefault(key, type("ThisDefectError", (DefectError,), {}))(key)

    def judge(self, trial: Trial) -> list[Finding]:
        """Return what a trial shows; one that is refused, although claimed, shows just that."""
        self.trials += 1
        try:
            return self.runner.findings(trial, whole)
        except OracleError:
            self.refused += 1
            return []
        except UnsupportedError as error:
            return [Finding("error", "the session", "", f"refused what is claimed: {error}")]

    def settle(self) -> list[Defect]:
        """Make what was found since the last time known, and return it."""
        found = sorted(self._fresh.values(), key=lambda defect: defect.size)
        self._fresh.clear()
        self.defects += found
        return found
