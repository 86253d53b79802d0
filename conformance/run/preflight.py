"""The pre-flight: a wrong adapter accuses the innocent, so it has to get one Linear right before anything is judged."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from gradconform.adapter import UnsupportedError
from gradconform.drive.evidence import Evidence
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.finding import findings_in
from gradconform.judge.gradients import gradients
from gradconform.target.resolve import Target
from gradconform.trial.trial import Trial

LINEAR = StageCase("preflight-linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))


def preflight(target: Target, evidence_of: Callable[[Trial], Evidence]) -> str | None:
    """Run one micro-batch of one Linear, B or else I and W; return what went wrong, or None."""
    claims = target.capabilities
    if not (claims.full or claims.split):
        return f"adapter {target.name!r} claims neither full nor split: there is nothing to judge"
    trial = Trial(stages=(LINEAR,), program="F0 B0" if claims.full else "F0 I0 W0", loss=not claims.mid_stage)
    try:
        lines = "; ".join(str(finding) for finding in findings_in(gradients(evidence_of(trial))))
    except UnsupportedError as error:
        lines = f"it claims {'full' if claims.full else 'split'} and refuses it: {error}"
    if not lines:
        return None
    return (
        f"adapter {target.name!r} failed its pre-flight (one Linear, one micro-batch, {trial.program}): "
        f"{lines}. "
        "Nothing is judged before this is right: look at the adapter first, then at the implementation"
    )
