"""Judges refusals: an impossible action must raise, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gradconform.adapter import UnsupportedError
from gradconform.diagnosis.wrong_tensor import largest
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Observation, Step
from gradconform.drive.reference64 import widen
from gradconform.results import Sort
from gradconform.trees import equal

from .finding import Finding, Judged, by_numeric_rule
from .gradients import gradients


def refused(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding unless every misuse raised and changed nothing."""
    for observation in evidence.observations:
        for step in observation.steps:
            if step.action.misuse and step.raised is None:
                yield Finding("no_error", "the action", str(step.action), "raised no error; expected one")
            if step.action.misuse and step.raised is not None:
                yield from left_behind(observation, step)


def refused_or_without_effect(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding unless every misuse raised, or returned no gradient, and changed nothing."""
    for observation in evidence.observations:
        for step in observation.steps:
            if not step.action.misuse:
                continue
            yield from left_behind(observation, step)
            for slot, grad in enumerate(step.input_grads or ()):
                if grad is not None:
                    text = "has a value; expected an error or None"
                    yield Finding("no_error", f"input {slot}", str(step.action), text, sort="input gradient")


@by_numeric_rule
def right_or_refused(evidence: Evidence, *, unless: str | None = None) -> Judged:
    """Yield wrong gradients, unless B or I, or F before them, raised and changed nothing.

    ``unless`` names a capability with which nothing may be refused.
    """
    raised = evidence.observation.raised
    if raised is None or raised.action.kind == "W" or (unless and getattr(evidence.capabilities, unless)):
        yield from gradients(evidence)
    else:
        yield from left_behind(evidence.observation, raised)


@by_numeric_rule
def right_where_claimed(evidence: Evidence) -> Judged:
    """Yield every wrong gradient if none_output_grad is claimed; without the claim the check is not required."""
    if not evidence.capabilities.none_output_grad:
        msg = "plain autograd itself reads None for a 0-d output as 1"
        raise UnsupportedError(msg)
    yield from gradients(evidence)


def left_behind(observation: Observation, step: Step) -> Iterator[Finding]:
    """Yield gradients and requires_grad flags that differ after ``step`` from those before it."""
    earlier = [s for s in observation.steps if s.position < step.position and s.action.stage == step.action.stage]
    if not earlier:
        return
    before = earlier[-1]
    yield from _changes(step, before.param_grads, step.param_grads, "parameter gradient", "gradient of")
    same_mb = [s for s in earlier if s.action.mb == step.action.mb and s.arg_grads is not None]
    if same_mb and step.arg_grads is not None:
        earlier_grads, grads = same_mb[-1].arg_grads or (), step.arg_grads
        yield from _changes(step, dict(enumerate(earlier_grads)), dict(enumerate(grads)), "input gradient", "input")
    if before.state and step.state:
        for name, flag in step.state.requires_grad.items():
            if before.state.requires_grad.get(name, flag) != flag:
                text = f"requires_grad became {flag} although the action raised"
                yield Finding("changed", name, str(step.action), text, sort="requires_grad flag")


def _changes(
    step: Step, before: Mapping[Any, Tensor | None], after: Mapping[Any, Tensor | None], sort: Sort, prefix: str
) -> Iterator[Finding]:
    for name in {**before, **after}:
        if not same(before.get(name), after.get(name)):
            text = "changed although the action raised" if step.raised else "changed"
            yield Finding("changed", f"{prefix} {name}", str(step.action), text, sort=sort)


def near(got: Tensor | None, wanted: Tensor | None) -> bool:
    """Return whether a gradient is within a coarse bound of the wanted one; an earlier or partial one is far off."""
    if got is None or wanted is None or got.shape != wanted.shape:
        return got is wanted
    error = largest(widen(got.detach()) - widen(wanted))
    return same(got, wanted) or error <= 0.05 * largest(wanted)


def same(one: object, other: object) -> bool:
    """Return whether two recorded values are equal, NaN equal to NaN."""
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
            return False
        if one.layout != torch.strided:
            one, other = one.to_dense(), other.to_dense()
        return equal(one, other) or bool(torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all())
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    return one == other
