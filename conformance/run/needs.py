"""Finds the values of a planned row that a failure needs, by resetting one dimension at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gradconform.contract.check import Check
from gradconform.contract.space.put_back import put_back, special
from gradconform.judge.finding import Finding
from gradconform.text.findings import alike
from gradconform.trial.trial import Trial

#: The search is repeated in at most this many rows that fail alike, if the known result does not hold or is empty.
_ROWS = 3

#: Returns the findings of a trial outside the check's own; None if they cannot be determined.
Tried = Callable[[Check, Trial], list[Finding] | None]


class Needs:
    """The required row values of a run's failures.

    The search uses the first row that fails in some way: at most one trial per value that is not plain in it. A later
    row that fails alike and has these values gets the same result without a trial.
    """

    def __init__(self, tried: Tried) -> None:
        """Create an empty search."""
        self._tried = tried
        self._known: dict[tuple[str, ...], list[Mapping[str, str]]] = {}

    def told(self, check: Check, findings: list[Finding]) -> list[Finding]:
        """Return the findings of a check with the required values; unchanged if the check has no row."""
        row = special(check.id)
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
        trials = ((name, put_back(check.id, name)) for name in row)
        right = {name for name, trial in trials if trial is not None and self._tried(check, trial) == []}
        needs = {name: word for name, word in row.items() if name in right}
        for key in dict.fromkeys(keys):
            if not self._of(key, row):
                self._known.setdefault(key, []).append(needs)
