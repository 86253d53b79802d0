"""Judges gradients: every input gradient, and every parameter gradient after every action."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby

import torch
from torch import Tensor

from gradconform.evidence import Evidence
from gradconform.fixtures.inputs import SameAs
from gradconform.judge.finding import Finding
from gradconform.observation import Observation, Step
from gradconform.tolerance import Partials, describe
from gradconform.tolerance import judge as judge_numbers

Reference = Callable[[], tuple[Tensor | None, Partials]]


def gradients(evidence: Evidence, *, lane: int | None = None) -> Iterator[Finding]:
    """Yield every tensor that is not what plain autograd gives, each at the first action after which it is wrong.

    All repeats of the trial are judged; the first that shows something wrong is told. ``lane`` narrows to one stage.
    """
    for observation in evidence.observations:
        found = list(_of_one_run(evidence, observation, lane))
        if found:
            yield from found
            return


def _of_one_run(evidence: Evidence, observation: Observation, lane: int | None) -> Iterator[Finding]:
    told: set[str] = set()
    for step in observation.steps:
        if lane is not None and step.action.stage != lane:
            continue
        if step.raised and not step.action.misuse:
            yield Finding("error", "the action", str(step.action), f"raised {step.raised}; plain autograd does not")
            continue
        for finding in _of_step(evidence, step):
            if finding.where not in told:
                told.add(finding.where)
                yield finding
    if observation.close_raised is not None:
        yield Finding("error", "the session", "close", f"raised {observation.close_raised}")


def _of_step(evidence: Evidence, step: Step) -> Iterator[Finding]:
    wanted = evidence.oracle_step(step)
    if step.outputs is not None and wanted.outputs is not None:
        for index, (got, output) in enumerate(zip(step.outputs, wanted.outputs, strict=True)):
            yield from compare(evidence, step, f"output {index}", got, output, None)
    if step.input_grads is not None and wanted.input_grads is not None and not step.action.misuse:
        yield from _input_grads(evidence, step, wanted)
    touched = evidence.capabilities.input_pass_touches_params and step.action.kind != "W"
    flushed = step.action.kind == "finish" and step.action.misuse  # what was forgotten may be flushed, or refused
    if wanted.param_grads and not touched and not flushed:
        for name, grad in wanted.param_grads.items():
            yield from compare(evidence, step, name, step.param_grads.get(name), grad, _param(evidence, name, step))


def _param(evidence: Evidence, name: str, step: Step) -> Reference:
    def reference() -> tuple[Tensor | None, Partials]:
        expected = evidence.expected_param(name, step)
        return expected.total, expected.partials

    return reference


def _input(evidence: Evidence, slot: int, step: Step) -> Reference:
    def reference() -> tuple[Tensor | None, Partials]:
        return evidence.reference(step.action.stage, step.action.mb).inputs[slot], Partials()

    return reference


def _input_grads(evidence: Evidence, step: Step, wanted: Step) -> Iterator[Finding]:
    got, expected = step.input_grads or (), wanted.input_grads or ()
    if len(got) != len(expected):
        text = f"{len(got)} input gradients were returned, expected {len(expected)}, one per argument"
        yield Finding("shape", "the returned tuple", str(step.action), text)
        return
    recipes = evidence.trial.stages[step.action.stage].inputs
    first = [recipe.index if isinstance(recipe, SameAs) else slot for slot, recipe in enumerate(recipes)]
    for origin, members in groupby(sorted(range(len(first)), key=first.__getitem__), key=first.__getitem__):
        slots = list(members)
        if len(slots) > 1 and _sums_to_one(evidence, step, [got[slot] for slot in slots], expected[origin]):
            continue
        for slot in slots:
            reference = _input(evidence, origin, step)
            yield from compare(evidence, step, f"input {slot}", got[slot], expected[slot], reference)


def _sums_to_one(evidence: Evidence, step: Step, got: list[Tensor | None], expected: Tensor | None) -> bool:
    """Tell whether the slots of one tensor passed twice add up to its gradient, which is as good as each having it."""
    present = [grad for grad in got if grad is not None]
    if expected is None or not present or any(grad.shape != expected.shape for grad in present):
        return False
    total = torch.stack(present).sum(0)
    return not list(compare(evidence, step, "input", total, expected, lambda: (None, Partials())))


def compare(
    evidence: Evidence, step: Step, where: str, got: object, expected: object, reference: Reference | None
) -> Iterator[Finding]:
    """Yield what is wrong with one tensor; what is bit-equal to plain autograd is right without more ado."""
    action = str(step.action)
    if not isinstance(expected, Tensor):
        if isinstance(got, Tensor):
            yield Finding("unexpected", where, action, f"expected None as from plain autograd, got {_summary(got)}")
        return
    if not isinstance(got, Tensor):
        kind = "nothing" if got is None else f"{got!r}"
        yield Finding("missing", where, action, f"expected {_summary(expected)}, got {kind}")
        return
    differs = _form(got, expected)
    if differs is not None:
        yield Finding(differs[0], where, action, differs[1])
        return
    if got.layout != torch.strided:
        got, expected = got.to_dense(), expected.to_dense()
    if torch.equal(got, expected):
        evidence.headrooms.append(0.0)
        return
    yield from _nonfinite(where, action, got, expected)
    yield from _numbers(evidence, where, action, got, expected, reference)


def _form(got: Tensor, expected: Tensor) -> tuple[str, str] | None:  # type: ignore[type-arg]
    for name in ("shape", "dtype", "device", "layout"):
        one, other = getattr(got, name), getattr(expected, name)
        if one != other:
            shown = (tuple(other), tuple(one)) if name == "shape" else (other, one)
            return name, f"expected {name} {shown[0]}, got {shown[1]}"
    return None


def _nonfinite(where: str, action: str, got: Tensor, expected: Tensor) -> Iterator[Finding]:
    if not (got.is_floating_point() or got.is_complex()):
        return
    differs = (torch.isnan(got) != torch.isnan(expected)) | (torch.isinf(got) != torch.isinf(expected))
    if got.is_floating_point():
        differs |= torch.isposinf(got) != torch.isposinf(expected)
    count = int(differs.sum())
    if count:
        worst = tuple(int(i) for i in differs.nonzero()[0])
        text = f"at {list(worst)}: expected {describe(expected[worst])}, got {describe(got[worst])} ({count} elements)"
        yield Finding("nonfinite", f"{where} (NaN and inf)", action, text)


def _numbers(
    evidence: Evidence, where: str, action: str, got: Tensor, expected: Tensor, reference: Reference | None
) -> Iterator[Finding]:
    if not (got.is_floating_point() or got.is_complex()):
        text = f"expected the integers of plain autograd, {int((got != expected).sum())} elements differ"
        yield Finding("mismatch", where, action, text)
        return
    total, partials = (None, Partials()) if reference is None else reference()
    if expected.dtype in {torch.float64, torch.complex128}:
        total = None
    judged = judge_numbers(got, expected, total, partials)
    evidence.headrooms.append(judged.headroom)
    if judged.passed:
        return
    text = (
        f"worst at {list(judged.worst)}: expected {describe(expected[judged.worst])}, "
        f"got {describe(got[judged.worst])}; error {judged.error:.3g}, bound {judged.bound:.3g}, "
        f"headroom {judged.headroom:.3g}"
    )
    yield Finding("mismatch", where, action, text, judged.error, judged.bound, judged.headroom)


def _summary(tensor: Tensor) -> str:
    largest = float(tensor.to_dense().abs().max()) if tensor.numel() and not tensor.dtype == torch.bool else 0.0
    return f"a tensor of shape {tuple(tensor.shape)}, largest element {largest:.3g}"
