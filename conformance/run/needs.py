"""Which values of a planned row a failure needs: one dimension at a time is put back to its plainest value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gradconform.contract.check import Check
from gradconform.contract.space.put_back import put_back, special
from gradconform.finding_text import alike
from gradconform.judge.finding import Finding
from gradconform.trial.trial import Trial

#: In so many rows that fail alike it is looked for again, where what is known does not hold or says nothing.
_ROWS = 3

#: Returns what a trial beside those of a check shows; None where it cannot be told.
Tried = Callable[[Check, Trial], list[Finding] | None]


class Needs:
    """What the failures of a run need.

    It is looked for in the first row that fails in some way: at most one trial per value that is not plain in it. Of
    a later row that fails alike, and has these values, it is said without a trial.
    """

    def __init__(self, tried: Tried) -> None:
        """Look for nothing yet."""
        self._tried = tried
        self._known: dict[tuple[str, ...], list[Mapping[str, str]]] = {}

    def told(self, check: Check, findings: list[Finding]) -> list[Finding]:
        """Return the findings of a check with what they need; as they are where the check has no row."""
        row = special(check.id)
        if row is None or not findings:
            return findings
        keys = [alike(finding.to_dict()) for finding in findings]
        if any(not self._of(key, row) and len(self._known.get(key, ())) < _ROWS for key in keys):
            self._look(check, row, keys)
        return [replace(one, needs=self._of(key, row)) for one, key in zip(findings, keys, strict=True)]

    def _of(self, key: tuple[str, ...], row: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return what is known to be needed for findings that are alike, where the row has it; the most that is."""
        fitting = (needs for needs in self._known.get(key, ()) if needs.items() <= row.items())
        return max(fitting, key=len, default=None)

    def _look(self, check: Check, row: Mapping[str, str], keys: Iterable[tuple[str, ...]]) -> None:
        """Put back each value of a row in turn: those without which nothing is wrong are needed.

        Less would be guessed: a judge that has found one thing asks no further, so another may hide behind it.
        """
        trials = ((name, put_back(check.id, name)) for name in row)
        right = {name for name, trial in trials if trial is not None and self._tried(check, trial) == []}
        needs = {name: word for name, word in row.items() if name in right}
        for key in dict.fromkeys(keys):
            if not self._of(key, row):
                self._known.setdefault(key, []).append(needs)
