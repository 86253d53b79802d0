"""Judges the device: plain autograd on it, against plain autograd on the CPU in the same dtype, and reference64.

The rule is the one that implementations are judged by, with room for other kernels that are right as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradconform.evidence import Evidence
from gradconform.judge.finding import Finding
from gradconform.judge.gradients import gradients


def device_faults(evidence: Evidence) -> Iterator[Finding]:
    """Yield what plain autograd gives on the device and cannot be rounding.

    ``evidence`` has the device's runs of plain autograd as observations, and the CPU's as the oracle. Where the stage
    draws random numbers, the device draws others, and only where its tensors sit is judged.
    """
    for observation in evidence.observations:
        for step in observation.steps:
            for where, place in step.misplaced.items():
                text = f"sits on {place} although the whole stage was put on {evidence.place}"
                yield Finding("device", where, str(step.action), text)
                return
    if not evidence.draws:
        for finding in gradients(evidence):
            yield replace(finding, text=finding.text.replace("; plain autograd does not", "; on the CPU it does not"))
