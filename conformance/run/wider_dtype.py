"""Finds causes that need more digits than a 16-bit dtype has: in float32, where the same trial fails alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch

from gradconform.contract.check import Check
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.judge.finding import OF_VALUES, Finding
from gradconform.process.interrupts import pass_on_an_interrupt
from gradconform.text.findings import alike
from gradconform.trial.trial import Trial

#: After so many trials in vain, later findings that are alike are not tried in float32 any more.
_IN_VAIN = 3

#: Returns the findings of a check's trial in float32, with their causes.
FindingsOf = Callable[[Check, Trial], list[Finding]]


class CausesInFloat32:
    """The causes, in float32, of a run's wrong values in a 16-bit dtype.

    An error of a few percent rules out few mistakes where each value is rounded to three digits. In float32 only
    the made mistake explains the values, if the trial fails there in the same tensor.
    """

    def __init__(self, dtype: torch.dtype, in_float32: FindingsOf) -> None:
        """Create an empty search for a run in ``dtype``; nothing is tried for one of 32 bits and more."""
        self._coarse = dtype.is_floating_point and torch.finfo(dtype).eps > torch.finfo(torch.float32).eps
        self._in_float32 = in_float32
        self._in_vain: Counter[tuple[str, ...]] = Counter()

    def annotate(self, check: Check, trial: Trial, findings: list[Finding]) -> list[Finding]:
        """Return the findings of a trial; those of wrong values have the cause that they have in float32, if any."""
        of_values = [one for one in findings if one.kind in OF_VALUES] if self._coarse else []
        keys = {alike(one.to_dict()) for one in of_values}
        if all(self._in_vain[key] >= _IN_VAIN for key in keys):
            return findings
        try:
            causes = {_place(one): one.cause for one in self._in_float32(check, trial) if _is_explained(one)}
        except BaseException as error:  # noqa: BLE001 (the failure itself is reported in any case)
            pass_on_an_interrupt(error)
            causes = {}
        if not any(_place(one) in causes for one in of_values):
            self._in_vain.update(keys)
        return [_with(one, causes.get(_place(one))) for one in findings]


def _is_explained(finding: Finding) -> bool:
    return finding.cause is not None and finding.cause.kind is not Mistake.DIAGNOSIS_FAILED


def _with(finding: Finding, cause: Cause | None) -> Finding:
    """Return a finding with its cause in float32; its own one stays if it is of the same kind."""
    if cause is None or (finding.cause is not None and finding.cause.kind is cause.kind):
        return finding
    return replace(finding, cause=replace(cause, dtype="float32"))


def _place(finding: Finding) -> tuple[str, ...]:
    """Return the tensor of a finding, and how it is wrong."""
    return finding.kind, finding.sort, finding.where, finding.action
