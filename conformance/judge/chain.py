"""Judges a chain of stages: against plain autograd stage by stage, and against one backward of the whole model."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.trial.program import parse

from .finding import Finding, Judged, Measured, by_numeric_rule, findings_in
from .gradients import SoFar, gradients, of_step

#: The gradients of the parameters of a stage, summed over the micro-batches so far.
Sums = dict[str, Tensor | None]


@by_numeric_rule
def chained(evidence: Evidence) -> Judged:
    """Yield what is not as in the same chain under plain autograd, or not as in one backward of the whole model.

    What is wrong only because a stage was handed something wrong is left out.
    """
    judged = list(gradients(evidence))
    if not findings_in(judged) and not evidence.mistaken:  # the whole model has no actions to make a mistake in
        judged += whole_model(evidence)
    yield from origins(judged)


def origins(judged: Iterable[Finding | Measured]) -> Judged:
    """Yield what was judged in order without the findings that follow from others.

    Behind a wrong output nothing can be right; a wrong gradient that was handed on spoils the stages before.
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
    """Yield outputs, losses and gradients that one plain forward and backward of the whole model does not give.

    It is run per micro-batch, in the trial's dtype; parameter gradients are summed in the order of the program.
    """
    sums: dict[int, Sums] = {}
    so_far = SoFar()
    for step in evidence.observation.steps:
        yield from of_step(evidence, step, _wanted(evidence, step, sums), so_far)


def _wanted(evidence: Evidence, step: Step, sums: dict[int, Sums]) -> Step:
    """Return the step with the values that the whole model gives in it."""
    action = step.action
    own = sums.get(action.stage, {})
    if action.kind == "finish":
        return Step.of({**vars(step), "param_grads": own})
    whole = evidence.whole_model(action.stage, action.mb)
    own = own or dict.fromkeys(whole.params)
    if action.kind in {"B", "W"}:
        own = {name: _sum(own[name], grad) for name, grad in whole.params.items()}
    sums[action.stage] = own
    given = {"outputs": whole.outputs, "loss": whole.loss, "input_grads": whole.inputs, "param_grads": own}
    return Step.of({**vars(step), **given})


def _sum(before: Tensor | None, grad: Tensor | None) -> Tensor | None:
    return before if grad is None else grad if before is None else before + grad
