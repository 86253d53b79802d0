"""Judges gradients: every input gradient, and every parameter gradient after every action."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, groupby
from typing import Any

import torch
from torch import Tensor

from gradconform.diagnosis import likely_cause
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.evidence import Evidence
from gradconform.drive.main_grad import is_clear
from gradconform.drive.observation import Observation, Step
from gradconform.fixtures.inputs import SameAs
from gradconform.results import Sort
from gradconform.trial.program import CLEARS, flush_pending

from .finding import BIT_EQUAL, Finding, Judged, by_numeric_rule, error_in, findings_in
from .values import Explain, Known, Reference, compare, same_bits

Grads = Mapping[str, Tensor | None]


@dataclass(slots=True)
class SoFar:
    """The tensors of one run that were judged so far.

    ``pairs`` has the gradients, got and expected, that were judged last, by stage and parameter. ``whole`` has all of a
    stage's. ``reported`` has the tensors that were found wrong, by stage and name.
    """

    pairs: dict[tuple[int, str], tuple[Tensor | None, Tensor | None]] = field(default_factory=dict)
    whole: dict[int, tuple[Grads, Grads]] = field(default_factory=dict)
    reported: set[tuple[int, str]] = field(default_factory=set)


@by_numeric_rule
def gradients(evidence: Evidence, *, lane: int | None = None) -> Judged:
    """Yield every tensor that differs from plain autograd's, each at the first action after which it is wrong.

    All repeats of the trial are judged; the first that shows a difference is reported. ``lane`` selects one stage.
    """
    for observation in evidence.observations:
        wrong = False
        for seen in _of_one_run(evidence, observation, lane):
            yield seen
            wrong = wrong or isinstance(seen, Finding)
            if wrong and not evidence.diagnose:  # if no causes are wanted, one finding is enough to fail a check
                return
        if wrong:
            return


def _of_one_run(evidence: Evidence, observation: Observation, lane: int | None) -> Judged:
    so_far = SoFar()
    for step in observation.steps:
        if lane is not None and step.action.stage != lane:
            continue
        if step.raised and not step.action.misuse:
            yield error_in(step.action, step.raised)
            continue
        yield from of_step(evidence, step, evidence.oracle.at(step.position), so_far)
    if observation.close_raised is not None:
        raised = observation.close_raised
        yield Finding("error", "the session", "close", f"raised {raised}", raised=raised)


def of_step(evidence: Evidence, step: Step, wanted: Step, so_far: SoFar) -> Judged:
    """Yield the values of a step that differ from those of another; tensors that were reported before are skipped."""
    if _same_copies(step, wanted):
        for value in (step.loss, *(step.outputs or ()), *(step.input_grads or ()), *step.param_grads.values()):
            if isinstance(value, Tensor):
                yield BIT_EQUAL
                return
        return
    stored = chain(_recorded(step, wanted), _param_grads(evidence, step, wanted, so_far))
    for seen in chain(_late(evidence, step, wanted), returned_values(evidence, step, wanted), stored):
        if isinstance(seen, Finding):
            key = (step.action.stage, seen.where)
            if key in so_far.reported:
                continue
            so_far.reported.add(key)
        yield seen


def _same_copies(step: Step, wanted: Step) -> bool:
    """Return whether one copy serves for both in all shown values, because the driver found them equal."""
    return (
        step.param_grads is wanted.param_grads
        and step.outputs is wanted.outputs
        and step.input_grads is wanted.input_grads
        and step.loss is wanted.loss
        and not step.tracked
        and not step.recorded
        and step.misplaced == wanted.misplaced
        and not step.late
    )


def compare_in(  # noqa: PLR0913, PLR0917 (as compare)
    evidence: Evidence,
    step: Step,
    sort: Sort,
    where: str,
    got: object,
    expected: object,
    reference: Reference | None,
    explain: Explain | None = None,
) -> Judged:
    """Yield the comparison of a value of a step, with the evidence's allowed error, and causes if it requires them."""
    if got is expected and isinstance(got, Tensor):  # one copy serves for both, because the driver found them equal
        return iter((BIT_EQUAL,))
    return compare(
        sort,
        where,
        step.action,
        got,
        expected,
        reference,
        explain=explain if evidence.diagnose and not evidence.mistaken else None,
        factor=evidence.factor,
        spread=evidence.spread.get(id(expected), 0.0),
        zeros_for_none=evidence.zeros_for_none,
        run_in=evidence.materials.dtype,
        fills=sort == "parameter gradient" and "deterministic" in evidence.trial.modes,
    )


def returned_values(evidence: Evidence, step: Step, wanted: Step) -> Judged:
    """Yield the differences in outputs, loss and input gradients of one step."""
    far = evidence.trial.chain or evidence.device is not None  # another device has other kernels
    yield from _misplaced(step, wanted)
    if step.outputs is not None and wanted.outputs is not None:
        if len(step.outputs) != len(wanted.outputs):
            text = f"expected as many outputs as plain autograd ({len(wanted.outputs)}), got {len(step.outputs)}"
            yield Finding("shape", "the returned outputs", str(step.action), text)
        for index, (got, output) in enumerate(zip(step.outputs, wanted.outputs, strict=False)):
            if same_bits(got, output):
                yield BIT_EQUAL
                continue
            # For a single stage plain autograd's outputs are the reference; in a chain the errors of all earlier stages
            # add up.
            reference = one_of(evidence, step, "outputs", index) if far else None
            explain = partial(likely_cause.of_output, evidence, index, step)
            yield from compare_in(evidence, step, "output", f"output {index}", got, output, reference, explain)
    if step.loss is not None and wanted.loss is not None:
        reference = one_of(evidence, step, "loss") if far else None
        yield from compare_in(evidence, step, "thing", "the loss", step.loss, wanted.loss, reference)
    judged = not step.action.misuse and _handed_on(evidence, step)
    if step.input_grads is not None and wanted.input_grads is not None and judged:
        yield from _input_grads(evidence, step, wanted)


def _late(evidence: Evidence, step: Step, wanted: Step) -> Iterator[Finding]:
    """Yield due gradients that an action leaves to a stream for which the caller's stream does not wait."""
    own = [one for one in step.late if one not in wanted.late]
    for sort, where in own:
        if sort != "parameter gradient" or due(evidence, step):
            text = (
                f"another stream is still writing it when {step.action} returns, so the caller's stream reads wrong "
                "values. Make the caller's stream wait before returning: "
                "torch.accelerator.current_stream().wait_stream(side)"
            )
            yield Finding("race", where, str(step.action), text, sort=sort)


def _misplaced(step: Step, wanted: Step) -> Iterator[Finding]:
    """Yield tensors that are on another device than under plain autograd."""
    if step.misplaced != wanted.misplaced:
        for (sort, where), device in step.misplaced.items():
            if wanted.misplaced.get((sort, where)) != device:
                text = f"is on {device}; plain autograd leaves it on the device of the stage"
                yield Finding("device", where, str(step.action), text, sort=sort)


def _recorded(step: Step, wanted: Step) -> Iterator[Finding]:
    """Yield accumulated gradients that require a gradient themselves."""
    for name, begins in step.recorded.items():
        if name not in wanted.recorded:
            text = "requires a gradient itself (plain autograd: no)"
            cause = Cause(Mistake.HISTORY, names=(begins,)) if begins else Cause(Mistake.MARKED)
            yield Finding("requires_grad", name, str(step.action), text, cause=cause, sort="parameter gradient")


def _param_grads(evidence: Evidence, step: Step, wanted: Step, so_far: SoFar) -> Judged:
    """Yield the comparison of every parameter gradient that an action changed, except those known to be wrong."""
    stage = step.action.stage
    flushed = step.action.kind == "finish" and step.action.misuse  # forgotten work may be flushed, or refused
    if not due(evidence, step) or flushed:
        return
    last = so_far.whole.get(stage)
    if last is not None and last[0] is step.param_grads and last[1] is wanted.param_grads:
        return
    so_far.whole[stage] = (step.param_grads, wanted.param_grads)
    known = {where for of, where in so_far.reported if of == stage}
    for name, expected in wanted.param_grads.items():
        got = step.param_grads.get(name)
        pair = so_far.pairs.get((stage, name))
        if name in known or (pair is not None and pair[0] is got and pair[1] is expected):
            continue
        so_far.pairs[stage, name] = (got, expected)
        if same_bits(got, expected) or _cleared_alike(evidence, step, name, got, expected):
            yield BIT_EQUAL
            continue
        shown = got if evidence.capabilities.grads_in_param_grad else as_in_grad(got, expected)
        by_hand = bool(evidence.trial.hand_grads)  # the reference of gradients set by hand is plain autograd itself
        reference = None if by_hand else _sum_of(evidence, name, step)
        explain = partial(likely_cause.of_param, evidence, name, step)
        yield from compare_in(evidence, step, "parameter gradient", name, shown, expected, reference, explain)


def _cleared_alike(evidence: Evidence, step: Step, name: str, got: Tensor | None, expected: Tensor | None) -> bool:
    """Return whether a cleared gradient kept outside ``.grad`` has zeros instead of None, or None instead of zeros."""
    if evidence.capabilities.grads_in_param_grad or (got is None) == (expected is None):
        return False
    before, sharing = evidence.trial.actions[: step.position + 1], evidence.trial.sharing(step.action.stage, name)
    cleared = any(action.kind in CLEARS and action.stage in sharing for action in before)
    return cleared and is_clear(got) and is_clear(expected)


def as_in_grad(got: Tensor | None, expected: Tensor | None) -> Tensor | None:
    """Return a gradient kept outside ``.grad`` as it would be there: a main_grad may be a wider float, or dense."""
    if isinstance(got, Tensor) and isinstance(expected, Tensor) and expected.layout is torch.sparse_coo:
        got = got.to_sparse() if got.layout is torch.strided else got
    wider = (
        isinstance(got, Tensor)
        and isinstance(expected, Tensor)
        and (got.is_floating_point() or got.is_complex())
        and got.is_complex() == expected.is_complex()
        and torch.promote_types(got.dtype, expected.dtype) == got.dtype
    )
    return got.to(expected.dtype) if wider and got is not None and expected is not None else got


def due(evidence: Evidence, step: Step) -> bool:
    """Return whether the claims promise exactly the parameter gradients of all called actions after a step."""
    early = evidence.capabilities.input_pass_touches_params and _between_input_and_weight(evidence, step)
    return not early and not flushed_later(evidence, step)


def flushed_later(evidence: Evidence, step: Step) -> bool:
    """Return whether the claims say that a later finish completes the W called up to a step."""
    if evidence.capabilities.weight_when != "finish":
        return False
    actions = (*evidence.trial.actions, step.action)[: step.position + 1]  # a finish that no program names comes last
    return flush_pending(actions, step.action.stage)


def _between_input_and_weight(evidence: Evidence, step: Step) -> bool:
    """Return whether an I of this stage still waits for its W: a gradient that it wrote early is not a complete sum."""
    own = [
        action
        for action in evidence.trial.actions[: step.position + 1]
        if action.stage == step.action.stage and not action.misuse
    ]
    return Counter(a.mb for a in own if a.kind == "I") != Counter(a.mb for a in own if a.kind == "W")


def _handed_on(evidence: Evidence, step: Step) -> bool:
    """Return whether input gradients of this stage are claimed: no stage before the first one reads them."""
    first = evidence.trial.chain and step.action.stage == 0
    return evidence.capabilities.first_stage_input_grads or not first


def one_of(evidence: Evidence, step: Step, field: str, index: int | None = None) -> Reference:
    """Return the float64 reference of an output, an input gradient or the loss of the step's own micro-batch."""

    def reference() -> Known:
        if evidence.draws or evidence.mistaken:
            return Known(None)
        found = getattr(evidence.reference(step.action.stage, step.action.mb, step.position + 1), field)
        terms = partial(evidence.terms_of_input, index, step) if field == "inputs" and index is not None else None
        return Known(found if index is None else found[index], terms=terms)

    return reference


def _sum_of(evidence: Evidence, name: str, step: Step) -> Reference:
    """Return the float64 reference of a parameter's gradient after the step."""

    def reference() -> Known:
        expected = evidence.expected_param(name, step)
        if evidence.draws or evidence.mistaken:
            return Known(None, expected.partials)
        return Known(expected.total, expected.partials, partial(evidence.terms_of_param, name, step))

    return reference


def _input_grads(evidence: Evidence, step: Step, wanted: Step) -> Judged:
    for slot in step.tracked:
        text = "requires a gradient itself (plain autograd: no), so it keeps its graph alive"
        yield Finding("requires_grad", f"input {slot}", str(step.action), text, sort="input gradient")
    got, expected = step.input_grads or (), wanted.input_grads or ()
    if len(got) != len(expected):
        text = f"expected one input gradient per argument ({len(expected)}), got {len(got)}"
        yield Finding("shape", "the returned tuple", str(step.action), text)
        return
    if all(one is other is None or same_bits(one, other) for one, other in zip(got, expected, strict=True)):
        yield BIT_EQUAL
        return
    recipes = evidence.trial.stages[step.action.stage].inputs
    first = [recipe.index if isinstance(recipe, SameAs) else slot for slot, recipe in enumerate(recipes)]
    for origin, members in groupby(sorted(range(len(first)), key=first.__getitem__), key=first.__getitem__):
        slots = list(members)
        summed = list(_summed(evidence, step, [got[slot] for slot in slots], expected[origin]))
        if summed and not findings_in(summed):
            yield from summed
            continue
        for slot in slots:
            reference = one_of(evidence, step, "inputs", origin)
            explain = partial(likely_cause.of_input, evidence, origin, step)
            yield from compare_in(
                evidence, step, "input gradient", f"input {slot}", got[slot], expected[slot], reference, explain
            )


def _summed(evidence: Evidence, step: Step, got: list[Any], expected: Tensor | None) -> Judged:
    """Yield the judgement of the summed slots of one tensor passed twice: the sum may be right without each slot."""
    present = [grad for grad in got if grad is not None]
    if len(got) == 1 or expected is None or not present:
        return
    if all(isinstance(grad, Tensor) and grad.shape == expected.shape for grad in present):
        yield from compare_in(evidence, step, "input gradient", "input", torch.stack(present).sum(0), expected, None)
