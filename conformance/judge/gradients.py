"""Judges gradients: every input gradient, and every parameter gradient after every action."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain, groupby, islice
from typing import Any

import torch
from torch import Tensor

from gradconform import diagnosis
from gradconform.evidence import Evidence
from gradconform.fixtures.inputs import SameAs
from gradconform.judge.finding import Finding
from gradconform.judge.values import Reference, compare, same_bits
from gradconform.observation import Observation, Step
from gradconform.tolerance import Partials

#: The pair of gradients, got and expected, that was judged last, by stage and parameter.
Judged = dict[tuple[int, str], tuple[Tensor | None, Tensor | None]]


def gradients(evidence: Evidence, *, lane: int | None = None) -> Iterator[Finding]:
    """Yield every tensor that is not what plain autograd gives, each at the first action after which it is wrong.

    All repeats of the trial are judged; the first that shows something wrong is told. ``lane`` narrows to one stage.
    """
    for observation in evidence.observations:
        # Where nobody asks for causes, one finding is enough to fail a check.
        found = list(islice(_of_one_run(evidence, observation, lane), None if evidence.diagnose else 1))
        if found:
            yield from found
            return


def _of_one_run(evidence: Evidence, observation: Observation, lane: int | None) -> Iterator[Finding]:
    told: set[tuple[int, str]] = set()
    judged: Judged = {}
    for step in observation.steps:
        if lane is not None and step.action.stage != lane:
            continue
        if step.raised and not step.action.misuse:
            yield Finding("error", "the action", str(step.action), f"raised {step.raised}; plain autograd does not")
            continue
        known = {where for stage, where in told if stage == step.action.stage}
        for finding in chain(_of_step(evidence, step), _param_grads(evidence, step, judged, known)):
            key = (step.action.stage, finding.where)
            if key not in told:
                told.add(key)
                yield finding
    if observation.close_raised is not None:
        yield Finding("error", "the session", "close", f"raised {observation.close_raised}")


def _of_step(evidence: Evidence, step: Step) -> Iterator[Finding]:
    """Yield what is wrong with outputs, loss and input gradients of one step."""
    wanted = evidence.oracle_step(step)
    far = evidence.trial.chain or evidence.place is not None  # another device has other kernels
    yield from _places(step, wanted)
    if step.outputs is not None and wanted.outputs is not None:
        if len(step.outputs) != len(wanted.outputs):
            text = f"{len(step.outputs)} outputs were returned, the stage has {len(wanted.outputs)}"
            yield Finding("shape", "the returned outputs", str(step.action), text)
        for index, (got, output) in enumerate(zip(step.outputs, wanted.outputs, strict=False)):
            # Of a stage alone plain autograd's outputs are the reference; in a chain the errors of all before add up.
            reference = one_of(evidence, step, "outputs", index) if far else None
            explain = partial(diagnosis.of_output, evidence, index, step) if evidence.diagnose else None
            yield from compare(evidence, step, f"output {index}", got, output, reference, explain)
    if step.loss is not None and wanted.loss is not None:
        reference = one_of(evidence, step, "loss") if far else None
        yield from compare(evidence, step, "the loss", step.loss, wanted.loss, reference)
    judged = not step.action.misuse and handed_on(evidence, step)
    if step.input_grads is not None and wanted.input_grads is not None and judged:
        yield from _input_grads(evidence, step, wanted)


def _places(step: Step, wanted: Step) -> Iterator[Finding]:
    """Yield what sits on another device than under plain autograd."""
    if step.misplaced != wanted.misplaced:
        for where, place in step.misplaced.items():
            if wanted.misplaced.get(where) != place:
                text = f"sits on {place}, not on the device of the stage, as it does under plain autograd"
                yield Finding("device", where, str(step.action), text)


def _param_grads(evidence: Evidence, step: Step, judged: Judged, known: Collection[str]) -> Iterator[Finding]:
    """Compare every parameter gradient that an action changed, but those ``known`` to be wrong."""
    wanted = evidence.oracle_step(step)
    touched = evidence.capabilities.input_pass_touches_params and between_input_and_weight(evidence, step)
    flushed = step.action.kind == "finish" and step.action.misuse  # what was forgotten may be flushed, or refused
    if touched or flushed:
        return
    for name, expected in wanted.param_grads.items():
        got = step.param_grads.get(name)
        last = judged.get((step.action.stage, name))
        if name in known or (last is not None and last[0] is got and last[1] is expected):
            continue
        judged[step.action.stage, name] = (got, expected)
        if same_bits(got, expected):
            evidence.headrooms.append(0.0)
            continue
        shown = got if evidence.capabilities.grads_in_param_grad else narrowed(got, expected)
        by_hand = bool(evidence.trial.hand_grads)  # plain autograd itself is the reference of what was put in
        reference = None if by_hand else sum_of(evidence, name, step)
        explain = partial(diagnosis.of_param, evidence, name, step) if evidence.diagnose else None
        yield from compare(evidence, step, name, shown, expected, reference, explain)


def narrowed(got: Tensor | None, expected: Tensor | None) -> Tensor | None:
    """Return a gradient kept outside ``.grad`` in the parameter's dtype: a main_grad may be a wider float."""
    wider = (
        isinstance(got, Tensor)
        and isinstance(expected, Tensor)
        and got.is_floating_point()
        and torch.promote_types(got.dtype, expected.dtype) == got.dtype
    )
    return got.to(expected.dtype) if wider and got is not None and expected is not None else got


def between_input_and_weight(evidence: Evidence, step: Step) -> bool:
    """Tell whether an I of this stage still waits for its W: what it may have written already is nobody's sum."""
    own = [
        action
        for action in evidence.trial.actions[: step.position + 1]
        if action.stage == step.action.stage and not action.misuse
    ]
    return {action.mb for action in own if action.kind == "I"} != {action.mb for action in own if action.kind == "W"}


def handed_on(evidence: Evidence, step: Step) -> bool:
    """Tell whether input gradients of this stage are claimed: nobody stands before the first one to read them."""
    first = evidence.trial.chain and step.action.stage == 0
    return evidence.capabilities.first_stage_input_grads or not first


def one_of(evidence: Evidence, step: Step, field: str, index: int | None = None) -> Reference:
    """Return the float64 reference of an output, an input gradient or the loss of the step's own micro-batch."""

    def reference() -> tuple[Tensor | None, Partials]:
        if evidence.draws:
            return None, Partials()
        found = getattr(evidence.reference(step.action.stage, step.action.mb), field)
        return (found if index is None else found[index]), Partials()

    return reference


def sum_of(evidence: Evidence, name: str, step: Step) -> Reference:
    """Return the float64 reference of a parameter's gradient as it stands after the step."""

    def reference() -> tuple[Tensor | None, Partials]:
        expected = evidence.expected_param(name, step)
        return None if evidence.draws else expected.total, expected.partials

    return reference


def _input_grads(evidence: Evidence, step: Step, wanted: Step) -> Iterator[Finding]:
    for slot in step.tracked:
        text = "requires a gradient itself, as plain autograd's do not: it holds the graph it came from"
        yield Finding("unexpected", f"input {slot}", str(step.action), text)
    got, expected = step.input_grads or (), wanted.input_grads or ()
    if len(got) != len(expected):
        text = f"{len(got)} input gradients were returned, expected {len(expected)}, one per argument"
        yield Finding("shape", "the returned tuple", str(step.action), text)
        return
    if all(one is other is None or same_bits(one, other) for one, other in zip(got, expected, strict=True)):
        evidence.headrooms.append(0.0)
        return
    recipes = evidence.trial.stages[step.action.stage].inputs
    first = [recipe.index if isinstance(recipe, SameAs) else slot for slot, recipe in enumerate(recipes)]
    for origin, members in groupby(sorted(range(len(first)), key=first.__getitem__), key=first.__getitem__):
        slots = list(members)
        if len(slots) > 1 and _sums_to_one(evidence, step, [got[slot] for slot in slots], expected[origin]):
            continue
        for slot in slots:
            reference = one_of(evidence, step, "inputs", origin)
            explain = partial(diagnosis.of_input, evidence, origin, step) if evidence.diagnose else None
            yield from compare(evidence, step, f"input {slot}", got[slot], expected[slot], reference, explain)


def _sums_to_one(evidence: Evidence, step: Step, got: list[Any], expected: Tensor | None) -> bool:
    """Tell whether the slots of one tensor passed twice add up to its gradient, which is as good as each having it."""
    present = [grad for grad in got if grad is not None]
    if expected is None or not present:
        return False
    if not all(isinstance(grad, Tensor) and grad.shape == expected.shape for grad in present):
        return False
    total = torch.stack(present).sum(0)
    before = len(evidence.headrooms)
    differs = list(compare(evidence, step, "input", total, expected, lambda: (None, Partials())))
    if differs:
        del evidence.headrooms[before:]  # it was no more than a question
    return not differs
