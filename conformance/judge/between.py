"""Judges memory that belongs to the caller: its outputs, its stage, and what it writes between two actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from gradconform.diagnosis import likely_cause
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.results import Sort

from .finding import Finding, Judged, by_numeric_rule, error_in
from .gradients import as_in_grad, compare_in
from .state import changed_later, raised
from .values import Known, Reference


def outputs_stay(evidence: Evidence) -> Iterator[Finding]:
    """Yield returned outputs that changed after they were returned."""
    yield from changed_later(evidence, "output")


def stage_freed(evidence: Evidence) -> Iterator[Finding]:
    """Yield the module and parameters that are alive after close, although nothing of the kit holds them."""
    yield from raised(evidence.observation)
    for name, holder in evidence.observation.held_stage.items():
        if name not in evidence.oracle.held_stage:
            text = f"is alive after close; {holder or 'no Python object, so perhaps an autograd graph,'} holds it"
            yield Finding("alive", name, "close", text, sort="thing")


@by_numeric_rule
def right_or_raised(evidence: Evidence) -> Judged:
    """Yield wrong gradients of one micro-batch whose actions may raise, up to the first that raises.

    What plain autograd gives is right. Where it raises, the gradients of the forward as it ran are right.
    """
    for step in evidence.observation.steps:
        if step.raised is not None:
            if not step.action.misuse and step.action.kind != "finish":
                yield error_in(step.action, step.raised)
            return
        wanted = evidence.oracle_step(step)
        if step.action.kind in {"B", "I"}:
            inputs = wanted.input_grads if wanted.raised is None else evidence.on_device(0, 0).inputs
            named = ((f"input {n}", n, grad) for n, grad in enumerate(inputs or ()))
            got: Mapping[Any, Any] = dict(enumerate(step.input_grads or ()))
            yield from _compared(evidence, step, "input gradient", named, got)
        if step.action.kind in {"B", "W"}:
            params = wanted.param_grads if wanted.raised is None else evidence.on_device(0, 0).params
            yield from _compared(
                evidence, step, "parameter gradient", ((n, n, grad) for n, grad in params.items()), step.param_grads
            )


def _compared(
    evidence: Evidence,
    step: Step,
    sort: Sort,
    named: Iterator[tuple[str, Any, Tensor | None]],
    got: Mapping[Any, Any],
) -> Judged:
    for where, key, expected in named:
        found = got.get(key)
        shown = found if evidence.capabilities.grads_in_param_grad else as_in_grad(found, expected)
        reference = _of_forward(evidence, step, sort, key)
        explain = partial(likely_cause.of_change_in_flight, evidence, key, step, expected)
        yield from compare_in(evidence, step, sort, where, shown, expected, reference, explain)


def _of_forward(evidence: Evidence, step: Step, sort: Sort, key: Any) -> Reference | None:
    """Return the float64 reference of a gradient of the forward as it ran; None where plain autograd's is another."""
    if evidence.oracle_step(step).raised is None:
        return None
    wide = evidence.reference(0, 0)
    return lambda: Known((wide.inputs if sort == "input gradient" else wide.params)[key])
