"""Which samples of an operation fail: the findings of the first, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradconform.contract.beside import OPERATIONS, named_in
from gradconform.contract.check import Check
from gradconform.judge.finding import Finding
from gradconform.trial.trial import Trial

from .undoing import JudgedTrial


def told(check: Check, by_trial: Sequence[tuple[Trial, Sequence[Finding]]]) -> list[Finding]:
    """Return the findings of a check; of one on an operation those of its first sample that fails.

    What a finding needs says which sample that is, by its number in torch's list, and how many of those tried fail.
    """
    failing = [(trial, found) for trial, found in by_trial if found]
    if not _on_operation(check) or not failing:
        return [finding for _, found in failing for finding in found]
    trial, found = failing[0]
    number = trial.stages[0].name.rpartition("-")[2]
    sample = f"{number} ({len(failing)} of {len(check.trials)} fail)"
    return [replace(finding, needs={**(finding.needs or {}), "sample": sample}) for finding in found]


def of_message(check: Check, tried: Sequence[JudgedTrial]) -> Sequence[JudgedTrial]:
    """Return the trials that fail whose findings a result has: of an operation the first alone."""
    failing = [one for one in tried if one.findings]
    return failing[:1] if _on_operation(check) else failing


def _on_operation(check: Check) -> bool:
    return named_in(check.id, OPERATIONS) is not None
