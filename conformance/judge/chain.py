"""Judges a chain of stages: against plain autograd stage by stage, and against one backward of the whole model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from gradconform.evidence import Evidence
from gradconform.judge.finding import Finding
from gradconform.judge.gradients import between_input_and_weight, gradients, handed_on, narrowed, one_of, sum_of
from gradconform.judge.values import compare
from gradconform.observation import Step
from gradconform.program import parse

#: The gradients of the parameters of a stage, summed over the micro-batches so far.
Sums = dict[str, Tensor | None]


def chained(evidence: Evidence) -> Iterator[Finding]:
    """Yield what is not as in the same chain under plain autograd, or not as in one backward of the whole model.

    What is wrong only because a stage was handed something wrong is left out.
    """
    yield from origins(list(gradients(evidence)) or list(whole_model(evidence)))


def origins(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings in order without those that follow from others.

    Behind a wrong output nothing can be right; a wrong gradient that was handed on spoils the stages before.
    """
    spoiled, ending = 0, None
    for finding in findings:
        actions = parse(finding.action) if finding.action != "close" else ()
        stage = actions[0].stage if actions else spoiled
        if (ending is not None and finding.action != ending) or stage < spoiled:
            continue
        yield finding
        if finding.where.startswith("output "):
            ending = finding.action
        elif finding.where.startswith("input "):
            spoiled = max(spoiled, stage)


def whole_model(evidence: Evidence) -> Iterator[Finding]:
    """Yield outputs, losses and gradients that one plain forward and backward of the whole model does not give.

    It is run per micro-batch, in the trial's dtype; parameter gradients are summed in the order of the program.
    """
    sums: dict[int, Sums] = {}
    told: set[tuple[int, str]] = set()
    for step in evidence.observation.steps:
        for finding in _of_step(evidence, step, sums):
            key = (step.action.stage, finding.where)
            if key not in told:
                told.add(key)
                yield finding


def _of_step(evidence: Evidence, step: Step, sums: dict[int, Sums]) -> Iterator[Finding]:
    action = step.action
    if action.kind == "finish":
        return
    wanted = evidence.whole_model(action.stage, action.mb)
    if action.kind == "F":
        for index, (got, output) in enumerate(zip(step.outputs or (), wanted.outputs, strict=True)):
            yield from compare(evidence, step, f"output {index}", got, output, one_of(evidence, step, "outputs", index))
        if step.loss is not None:
            yield from compare(evidence, step, "the loss", step.loss, wanted.loss, one_of(evidence, step, "loss"))
    if action.kind in {"B", "I"} and handed_on(evidence, step):
        for slot, (got, grad) in enumerate(zip(step.input_grads or (), wanted.inputs, strict=True)):
            yield from compare(evidence, step, f"input {slot}", got, grad, one_of(evidence, step, "inputs", slot))
    own = sums.setdefault(action.stage, dict.fromkeys(wanted.params))
    if action.kind in {"B", "W"}:
        sums[action.stage] = own = {name: _sum(own[name], grad) for name, grad in wanted.params.items()}
    if evidence.capabilities.input_pass_touches_params and between_input_and_weight(evidence, step):
        return
    for name, grad in own.items():
        stored = step.param_grads.get(name)
        got = stored if evidence.capabilities.grads_in_param_grad else narrowed(stored, grad)
        yield from compare(evidence, step, name, got, grad, sum_of(evidence, name, step))


def _sum(before: Tensor | None, grad: Tensor | None) -> Tensor | None:
    return before if grad is None else grad if before is None else before + grad
