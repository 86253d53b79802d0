"""Narrows a failure down by more trials: to the values of a planned row that it needs, and to one module of a stage.

One dimension of a row is reset at a time, and each module inside a user's stage is tried alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gradconform.contract.check import Check
from gradconform.contract.extra_ids import is_on_named_stage
from gradconform.contract.space.reset import non_default_values, reset_value
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.finding import Finding
from gradconform.named_stages.submodules import submodules_of
from gradconform.text.findings import alike
from gradconform.trial.trial import Trial

#: The search is repeated in at most this many rows that fail alike, if the known result does not hold or is empty.
_ROWS = 3

#: Returns the findings of a trial outside the check's own; None if they cannot be determined.
FindingsOf = Callable[[Check, Trial], list[Finding] | None]


class NeededValues:
    """The required row values of a run's failures.

    The search uses the first row that fails in some way: at most one trial per value that is not plain in it. A later
    row that fails alike and has these values gets the same result without a trial.
    """

    def __init__(self, tried: FindingsOf) -> None:
        """Create an empty search."""
        self._tried = tried
        self._known: dict[tuple[str, ...], list[Mapping[str, str]]] = {}

    def annotate(self, check: Check, findings: list[Finding]) -> list[Finding]:
        """Return the findings of a check with the required values; unchanged if the check has no row."""
        row = non_default_values(check.id)
        if row is None or not findings:
            return findings
        keys = [alike(finding.to_dict()) for finding in findings]
        if any(not self._of(key, row) and len(self._known.get(key, ())) < _ROWS for key in keys):
            self._look(check, row, keys)
        return [replace(one, needs=self._of(key, row)) for one, key in zip(findings, keys, strict=True)]

    def _of(self, key: tuple[str, ...], row: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the known required values for similar findings that the row has; the largest set."""
        fitting = (needs for needs in self._known.get(key, ()) if needs.items() <= row.items())
        return max(fitting, key=len, default=None)

    def _look(self, check: Check, row: Mapping[str, str], keys: Iterable[tuple[str, ...]]) -> None:
        """Reset each value of a row in turn: a value is required if nothing is wrong without it.

        A weaker test would be a guess: a judge stops at its first finding, so another one may be hidden.
        """
        trials = ((name, reset_value(check.id, name)) for name in row)
        right = {name for name, trial in trials if trial is not None and self._tried(check, trial) == []}
        needs = {name: word for name, word in row.items() if name in right}
        for key in dict.fromkeys(keys):
            if not self._of(key, row):
                self._known.setdefault(key, []).append(needs)


#: How many pieces are tried for one failure; in a model of a thousand modules only the path down is tried.
_MOST = 60


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings in the order of their actions, those of one action by their error/bound.

    Findings without numbers, such as a missing gradient, come before the others.
    """
    actions = list(dict.fromkeys(finding.action for finding in findings))
    far = {id(one): math.inf if one.error_ratio is None else one.error_ratio for one in findings}
    return sorted(findings, key=lambda one: (actions.index(one.action), -far[id(one)]))


class SmallestModules:
    """The smallest pieces that show the failures of a run.

    From the whole stage down, the search enters the first module that shows a finding of the same kind, until none
    inside it does. It runs once for similar findings on a stage.
    """

    def __init__(self, tried: FindingsOf) -> None:
        """Create an empty search."""
        self._tried = tried
        self._known: dict[tuple[str, ...], str] = {}

    def annotate(self, check: Check, trial: Trial, findings: list[Finding]) -> list[Finding]:
        """Return the findings of a check, the worst of each action first, with the smallest failing piece.

        They are unchanged if that is the whole stage.
        """
        if not is_on_named_stage(check.id) or not findings or trial.chain:
            return findings
        return [self._with_piece(check, trial, finding) for finding in worst_first(findings)]

    def _with_piece(self, check: Check, trial: Trial, finding: Finding) -> Finding:
        case, key = trial.stages[0], alike(finding.to_dict())
        known = (case.name, *key)
        if known not in self._known:
            self._known[known] = self._smallest(check, trial, case, key)
        path = self._known[known]
        return replace(finding, needs={**(finding.needs or {}), "piece": path}) if path else finding

    def _smallest(self, check: Check, trial: Trial, case: StageCase, key: tuple[str, ...]) -> str:
        """Return the name of the smallest module that fails alike, empty if only the whole stage does."""
        path, left = "", _MOST
        while left > 0:
            for name, piece in submodules_of(case, path):
                left -= 1
                if left < 0 or self._fails_alike(check, trial, piece, key):
                    path = name if left >= 0 else path
                    break
            else:
                return path
        return path

    def _fails_alike(self, check: Check, trial: Trial, piece: StageCase, key: tuple[str, ...]) -> bool:
        found = self._tried(check, replace(trial, stages=(piece,) * len(trial.stages), tied=())) or []
        return any(alike(one.to_dict())[:3] == key[:3] for one in found)
