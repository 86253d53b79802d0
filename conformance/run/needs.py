"""Which values of a planned row a failure needs: one dimension at a time is put back to its plainest value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gradconform.contract.check import Check
from gradconform.contract.space.put_back import put_back, special
from gradconform.finding_text import alike, named
from gradconform.judge.finding import Finding
from gradconform.trial.trial import Trial

#: For findings that are alike so many sets of values are looked for; what fails without any of these is told without.
_SETS = 3

#: Returns what a trial beside those of a check shows; None where it cannot be told.
Tried = Callable[[Check, Trial], list[Finding] | None]


class Needs:
    """What the failures of a run need.

    It is looked for in the first row that fails in some way: at most one trial per value that is not plain in it. Of
    a later row that fails alike, and has these values, it is said as well.
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
        if any(self._of(key, row) is None and len(self._known.get(key, ())) < _SETS for key in keys):
            self._look(check, row, dict(zip(keys, findings, strict=True)))
        return [replace(one, needs=self._of(key, row)) for one, key in zip(findings, keys, strict=True)]

    def _of(self, key: tuple[str, ...], row: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return what is known to be needed for findings that are alike, where the row has it."""
        return next((needs for needs in self._known.get(key, ()) if needs.items() <= row.items()), None)

    def _look(self, check: Check, row: Mapping[str, str], findings: Mapping[tuple[str, ...], Finding]) -> None:
        """Put back each value of a row in turn: of what is gone without it, it is needed."""
        trials = ((dimension, put_back(check.id, dimension)) for dimension in row)
        found = {name: None if trial is None else self._tried(check, trial) for name, trial in trials}
        left = {name: _things(some) for name, some in found.items() if some is not None}
        for key, finding in findings.items():
            if self._of(key, row) is None:
                thing = named(finding.sort, finding.where)
                needs = {name: row[name] for name, things in left.items() if thing not in things}
                self._known.setdefault(key, []).append(needs)


def _things(findings: Iterable[Finding]) -> set[str]:
    """Return what some findings are about: with another value the same mistake may show by another kind of finding."""
    return {named(finding.sort, finding.where) for finding in findings}
