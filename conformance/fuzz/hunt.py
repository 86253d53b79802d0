"""The hunt: judges trials, remembers the smallest that shows a new defect, and passes by what is known already."""

from __future__ import annotations

import time

from gradconform.adapter import UnsupportedError
from gradconform.fuzz.defect import Defect, key_of, size_of
from gradconform.fuzz.reduce import reduced
from gradconform.judge import whole
from gradconform.judge.finding import Finding
from gradconform.plain import DeviceFaultError, DeviceLostError, OracleError
from gradconform.run import Runner
from gradconform.trial import Trial

#: How many trials the shrinking of one defect takes at most.
_SHRINKING = 250


class DefectError(AssertionError):
    """Tells hypothesis that a trial fails, in the way that is being shrunk."""


class Hunt:
    """What was tried on one target, and what was found."""

    def __init__(self, runner: Runner, *, deadline: float | None = None) -> None:
        """Judge through ``runner``; from ``deadline`` on (of ``time.monotonic``) nothing is tried any more."""
        self.runner, self.deadline = runner, deadline
        self.trials = self.failing = self.unjudged = 0
        self.defects: list[Defect] = []
        self._found: Defect | None = None
        self._left = 0
        self.examples = 0

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() > self.deadline

    def attempt(self, trial: Trial) -> None:
        """Judge one trial; raise :class:`DefectError` where it shows a defect that is not known."""
        if self.over or (self._found is not None and self._left == 0):
            return
        self.examples += self._found is None
        self._left -= self._found is not None
        findings = self.judge(trial)
        if not findings:
            return
        self.failing += 1
        key = key_of(findings[0])
        if any(defect.explains(key, trial) for defect in self.defects):
            return
        if self._found is None:
            self._left = _SHRINKING
        elif key != self._found.key:
            return  # another defect, met on the way: it will be found again
        if self._found is None or size_of(trial) < self._found.size:
            self._found = Defect(key, trial, tuple(findings))
        raise DefectError(key)

    def judge(self, trial: Trial) -> list[Finding]:
        """Return what a trial shows; one that is refused, although claimed, shows just that."""
        self.trials += 1
        try:
            return self.runner.findings(trial, whole)
        except (OracleError, DeviceFaultError, DeviceLostError):  # of the implementation nothing is known
            self.unjudged += 1
            return []
        except UnsupportedError as error:
            return [Finding("error", "the session", "", f"refused what is claimed: {error}")]

    def settle(self) -> Defect | None:
        """Reduce what was found since the last time, make it known, and return it."""
        if self._found is None:
            return None
        found = reduced(self._found, self.judge)
        self._found = None
        self.defects.append(found)
        return found
