"""The outcome of each defect of the bench, and of all together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradconform.bench import Defect

from .command_report import CommandReport


@dataclass(frozen=True, slots=True)
class Outcome:
    """The kit's results on a defect and on the fixed version."""

    defect: Defect
    broken: CommandReport
    fixed: CommandReport

    @property
    def judged(self) -> bool:
        """Whether the code at fault and the fixed version could run here."""
        return not (self.broken.unavailable or self.fixed.unavailable)

    @property
    def found(self) -> bool:
        """Whether a check failed on the code at fault."""
        return bool(self.broken.failed)

    @property
    def cause(self) -> str | None:
        """The cause of most failed checks; of several causes with equally many, an expected one."""
        if not self.broken.causes:
            return None
        most = self.broken.causes[0][1]
        tied = [kind for kind, count in self.broken.causes if count == most]
        return next((kind for kind in tied if kind in self.defect.causes), tied[0])

    @property
    def right_cause(self) -> bool:
        """Whether :attr:`cause` is an expected one."""
        return self.cause in self.defect.causes

    @property
    def unexplained(self) -> bool:
        """Whether the kit reports a wrong value without a cause, as the record expects."""
        return self.right_cause and self.cause == "mismatch"

    @property
    def silent(self) -> bool:
        """Whether the fixed version was judged and has no failure."""
        return self.fixed.silent

    @property
    def as_recorded(self) -> bool:
        """Whether the outcome matches the record; false if it was not judged."""
        expected = (not self.defect.missed, not self.defect.missed and not self.defect.otherwise, True)
        return self.judged and (self.found, self.right_cause, self.silent) == expected

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        defect = self.defect
        return {
            "id": defect.id,
            "area": defect.area,
            "link": defect.link,
            "real": defect.real,
            "command": list(defect.command),
            "judged": self.judged,
            "found": self.found,
            "cause": self.cause,
            "causes": dict(self.broken.causes),
            "right_cause": self.right_cause,
            "failed": list(self.broken.failed),
            "errors": list(self.broken.errors),
            "silent": self.silent,
            "accused": [*self.fixed.failed, *self.fixed.errors],
            "as_recorded": self.as_recorded,
            "seconds": round(self.broken.seconds + self.fixed.seconds, 1),
            "processor_seconds": round(self.broken.processor + self.fixed.processor, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """All outcomes of a run; ``planned`` are the selected defects, ``seconds`` the duration."""

    planned: Sequence[Defect]
    outcomes: Sequence[Outcome]
    seconds: float
    workers: int
    environment: Mapping[str, Any]

    @property
    def whole(self) -> bool:
        """Whether every selected defect has an outcome."""
        return len(self.outcomes) == len(self.planned)

    @property
    def judged(self) -> list[Outcome]:
        """The outcomes of the defects that could be judged here."""
        return [outcome for outcome in self.outcomes if outcome.judged]

    @property
    def complete(self) -> bool:
        """Whether every selected defect could be judged here."""
        return len(self.judged) == len(self.planned)

    @property
    def good(self) -> bool:
        """Whether every judged outcome matches its record."""
        return all(outcome.as_recorded for outcome in self.judged)

    @property
    def found(self) -> int:
        """The number of found defects."""
        return sum(outcome.found for outcome in self.judged)

    @property
    def right_causes(self) -> int:
        """The number of found defects with the right cause."""
        return sum(outcome.found and outcome.right_cause for outcome in self.judged)

    @property
    def unexplained(self) -> int:
        """The number of found defects for which only a wrong value was expected and reported."""
        return sum(outcome.found and outcome.unexplained for outcome in self.judged)

    @property
    def accused(self) -> int:
        """The number of fixed versions that failed or could not be judged."""
        return sum(not outcome.silent for outcome in self.judged)

    @property
    def processor(self) -> float:
        """The processor time of all commands in seconds; a command of two defects counts once."""
        reported = {one.command: one for outcome in self.outcomes for one in (outcome.broken, outcome.fixed)}
        return sum(one.processor for one in reported.values())

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "schema": "gradconform-bench",
            "schema_version": 1,
            "whole": self.whole,
            "planned": len(self.planned),
            "judged": len(self.judged),
            "found": self.found,
            "right_causes": self.right_causes,
            "unexplained": self.unexplained,
            "accused": self.accused,
            "seconds": round(self.seconds, 1),
            "processor_seconds": round(self.processor, 1),
            "workers": self.workers,
            "environment": dict(self.environment),
            "defects": [outcome.to_dict() for outcome in self.outcomes],
        }
