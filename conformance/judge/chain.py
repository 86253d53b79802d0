"""Judges a chain of stages: against plain autograd stage by stage, and against one backward of the whole model."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.trial.program import parse

from .finding import Finding, Judged, Measured, by_numeric_rule, findings_in
from .gradients import Last, between_input_and_weight, compare_in, gradients, handed_on, narrowed, once, one_of, sum_of

#: The gradients of the parameters of a stage, summed over the micro-batches so far.
Sums = dict[str, Tensor | None]


@by_numeric_rule
def chained(evidence: Evidence) -> Judged:
    """Yield what is not as in the same chain under plain autograd, or not as in one backward of the whole model.

    What is wrong only because a stage was handed something wrong is left out.
    """
    judged = list(gradients(evidence))
    if not findings_in(judged):
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
    judged: Last = {}
    told: set[tuple[int, str]] = set()
    for step in evidence.observation.steps:
        yield from once(_of_step(evidence, step, sums, judged), step, told)


def _of_step(evidence: Evidence, step: Step, sums: dict[int, Sums], judged: Last) -> Judged:
    action = step.action
    if action.kind == "finish":
        return
    wanted = evidence.whole_model(action.stage, action.mb)
    if action.kind == "F":
        for index, (got, output) in enumerate(zip(step.outputs or (), wanted.outputs, strict=True)):
            yield from compare_in(
                evidence, step, "output", f"output {index}", got, output, one_of(evidence, step, "outputs", index)
            )
        if step.loss is not None:
            yield from compare_in(
                evidence, step, "thing", "the loss", step.loss, wanted.loss, one_of(evidence, step, "loss")
            )
    if action.kind in {"B", "I"} and handed_on(evidence, step):
        for slot, (got, grad) in enumerate(zip(step.input_grads or (), wanted.inputs, strict=True)):
            yield from compare_in(
                evidence, step, "input gradient", f"input {slot}", got, grad, one_of(evidence, step, "inputs", slot)
            )
    own = sums.setdefault(action.stage, dict.fromkeys(wanted.params))
    if action.kind in {"B", "W"}:
        sums[action.stage] = own = {name: _sum(own[name], grad) for name, grad in wanted.params.items()}
    if not (evidence.capabilities.input_pass_touches_params and between_input_and_weight(evidence, step)):
        yield from _params(evidence, step, own, judged)


def _params(evidence: Evidence, step: Step, own: Sums, judged: Last) -> Judged:
    for name, grad in own.items():
        stored = step.param_grads.get(name)
        last = judged.get((step.action.stage, name))
        if last is None or last[0] is not stored or last[1] is not grad:
            judged[step.action.stage, name] = (stored, grad)
            got = stored if evidence.capabilities.grads_in_param_grad else narrowed(stored, grad)
            yield from compare_in(evidence, step, "parameter gradient", name, got, grad, sum_of(evidence, name, step))


def _sum(before: Tensor | None, grad: Tensor | None) -> Tensor | None:
    return before if grad is None else grad if before is None else before + grad
