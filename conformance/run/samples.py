"""Selects the failing samples of an operation: the findings of the first, and their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradconform.contract.check import Check
from gradconform.contract.extra_ids import OPERATIONS, name_in_id
from gradconform.judge.finding import Finding
from gradconform.trial.trial import Trial

from .single_mistakes import JudgedTrial


def reported_findings(check: Check, by_trial: Sequence[tuple[Trial, Sequence[Finding]]]) -> list[Finding]:
    """Return the findings of a check; for a check on an operation, those of its first failing sample.

    The needs of a finding name the sample, by its number in torch's list, and how many of the tried ones fail.
    """
    failing = [(trial, found) for trial, found in by_trial if found]
    if not _on_operation(check) or not failing:
        return [finding for _, found in failing for finding in found]
    trial, found = failing[0]
    number = trial.stages[0].name.rpartition("-")[2]
    sample = f"{number} ({len(failing)} of {len(check.trials)} fail)"
    return [replace(finding, needs={**(finding.needs or {}), "sample": sample}) for finding in found]


def of_message(check: Check, tried: Sequence[JudgedTrial]) -> Sequence[JudgedTrial]:
    """Return the failing trials whose findings a result has: for an operation the first one only."""
    failing = [one for one in tried if one.findings]
    return failing[:1] if _on_operation(check) else failing


def _on_operation(check: Check) -> bool:
    return name_in_id(check.id, OPERATIONS) is not None
