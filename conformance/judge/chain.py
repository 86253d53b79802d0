"""Judges a chain of stages: against plain autograd per stage, and against one backward of the whole model."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.trial.program import parse

from .finding import Finding, Judged, Measured, by_numeric_rule, findings_in
from .gradients import SoFar, gradients, of_step

#: The gradients of a stage's parameters, summed over the micro-batches so far.
Sums = dict[str, Tensor | None]


@by_numeric_rule
def chained(evidence: Evidence) -> Judged:
    """Yield values that differ from the same chain under plain autograd, or from one backward of the whole model.

    A value that is wrong only because its stage received a wrong input is skipped.
    """
    judged = list(gradients(evidence))
    if not findings_in(judged) and not evidence.mistaken:  # the whole model has no actions in which to make a mistake
        judged += whole_model(evidence)
    yield from origins(judged)


def origins(judged: Iterable[Finding | Measured]) -> Judged:
    """Yield the ordered findings, without those that follow from others.

    After a wrong output nothing can be right, and a wrong gradient that is passed on spoils the stages before.
    """
    spoiled, ending = 0, None
    for finding in judged:
        if isinstance(finding, Measured):
            yield finding
            continue
        actions = parse(finding.action) if finding.action != "close" else ()
        stage = actions[0].stage if actions else spoiled
        if (ending is not None and finding.action != ending) or stage < spoiled:
            continue
        yield finding
        if finding.sort == "output":
            ending = finding.action
        elif finding.sort == "input gradient":
            spoiled = max(spoiled, stage)


def whole_model(evidence: Evidence) -> Judged:
    """Yield outputs, losses and gradients that differ from one plain forward and backward of the whole model.

    The whole model runs per micro-batch, in the trial's dtype; parameter gradients are summed in the order of the
    program.
    """
    sums: dict[int, Sums] = {}
    so_far = SoFar()
    for step in evidence.observation.steps:
        yield from of_step(evidence, step, _wanted(evidence, step, sums), so_far)


def _wanted(evidence: Evidence, step: Step, sums: dict[int, Sums]) -> Step:
    """Return the step with the whole model's values."""
    action = step.action
    own = sums.get(action.stage, {})
    if action.kind == "finish":
        return Step.of({**vars(step), "param_grads": own})
    whole = evidence.on_device(action.stage, action.mb)
    own = own or dict.fromkeys(whole.params)
    if action.kind in {"B", "W"}:
        own = {name: _sum(own[name], grad) for name, grad in whole.params.items()}
    sums[action.stage] = own
    given = {"outputs": whole.outputs, "loss": whole.loss, "input_grads": whole.inputs, "param_grads": own}
    return Step.of({**vars(step), **given})


def _sum(before: Tensor | None, grad: Tensor | None) -> Tensor | None:
    return before if grad is None else grad if before is None else before + grad
