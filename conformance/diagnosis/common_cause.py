"""Compares all values of one action with those of one mistake: a single cause must explain all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.drive.reference64 import widen

from .parts import held_before, of_microbatch
from .rerun import Grads, rerun_of
from .wrong_tensor import ENOUGH, dense, distinct, largest, rounding

#: How many times rounding an error must exceed to need an explanation.
_CLEAR = 4.0


@dataclass(frozen=True, slots=True)
class GivenGradient:
    """One tensor that an action returned, or added to the existing gradient.

    ``name`` is a slot or a parameter; None means no tensor.
    """

    name: int | str
    got: Tensor | None
    right: Tensor | None
    allowed: float

    @property
    def error(self) -> float:
        """The error of the tensor."""
        if self.got is None or self.right is None:
            return largest(self.got if self.right is None else self.right)
        return largest(self.got - self.right)


def given_by(evidence: Evidence, step: Step) -> list[GivenGradient]:
    """Return the values of an action: for B and I the input gradients, for B and W the addition to each parameter."""
    action = step.action
    again = rerun_of(evidence, step)
    right = again.grads(again.given)
    found: list[GivenGradient] = []
    if action.kind in {"B", "I"} and step.input_grads is not None and len(step.input_grads) == len(right.inputs):
        found += [_given(slot, got, None, right.inputs[slot]) for slot, got in enumerate(step.input_grads)]
    if action.kind in {"B", "W"} and not evidence.capabilities.input_pass_touches_params:
        found += [
            _given(name, step.param_grads.get(name), held_before(evidence, name, step), grad)
            for name, grad in right.params.items()
        ]
    later = _weight_pass(evidence, step) if action.kind == "I" else None
    return found if later is None else [*found, *given_by(evidence, later)]


def _weight_pass(evidence: Evidence, step: Step) -> Step | None:
    """Return the W that completes an I: a mistake at the start of the I shows in both."""
    own = of_microbatch(evidence, step)
    return next((seen for seen in own if seen.action.kind == "W" and not seen.action.misuse), None)


def _given(name: int | str, got: Tensor | None, before: Tensor | None, right: Tensor | None) -> GivenGradient:
    if got is None:
        return GivenGradient(name, None, right, 0.0)
    after = dense(widen(got))
    eps = torch.finfo(got.dtype).eps if got.is_floating_point() or got.is_complex() else 0.0
    scale = max(largest(after), largest(before), largest(right))
    added = after if before is None or before.shape != after.shape else after - before
    return GivenGradient(name, added, right, rounding(eps, scale))


def explained(all_given: list[GivenGradient], grads: Grads) -> bool:
    """Return whether ``grads`` are all values of the action, and match better than chance."""
    bits = 0.0
    for given in all_given:
        value = grads.inputs[given.name] if isinstance(given.name, int) else grads.params[given.name]
        found = _bits(given, value)
        if found is None:
            return False
        bits += found
    return bits >= ENOUGH


def _bits(given: GivenGradient, value: Tensor | None) -> float | None:
    """Return by how many bits a matching value is better than chance; None if it does not match."""
    got = given.got
    if got is None or (value is None and not bool(got.any())):
        return 0.0 if value is None else None
    wanted = torch.zeros_like(got) if value is None else value
    if wanted.shape != got.shape or (given.right is not None and given.right.shape != got.shape):
        return None
    error = given.error
    wrong = error > _CLEAR * given.allowed
    allowed = min(given.allowed, error / _CLEAR) if wrong else 2.0 * given.allowed
    if not largest(got - wanted) <= allowed:
        return None
    if not wrong or allowed == 0.0:
        return 0.0
    changed = wanted if given.right is None else wanted - given.right
    return distinct(changed, allowed) * math.log2(error / allowed)


def wrong(all_given: list[GivenGradient]) -> Iterator[GivenGradient]:
    """Yield the wrong values."""
    for given in all_given:
        if given.error > _CLEAR * given.allowed or (given.got is None) != (given.right is None):
            yield given
