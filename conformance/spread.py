"""How far two runs of one thing are apart, tensor by tensor: on some devices plain autograd does not repeat itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradconform.observation import Observation, Step


def spread_of(one: Observation, other: Observation) -> dict[int, float]:
    """Return the largest difference per tensor of ``one``, by its id; what has the same bits in both is left out."""
    found: dict[int, float] = {}
    for first, second in zip(one.steps, other.steps, strict=False):
        for a, b in zip(_values(first), _values(second), strict=False):
            if isinstance(a, Tensor) and isinstance(b, Tensor) and a is not b:
                apart = _apart(a, b)
                if apart:
                    found[id(a)] = max(apart, found.get(id(a), 0.0))
    return found


def _values(step: Step) -> Iterator[Any]:
    for group in (step.outputs, (step.loss,), step.input_grads, step.arg_grads, step.weight_result):
        yield from group or ()
    yield from step.param_grads.values()
    if step.state is not None:
        yield from step.state.buffers.values()


def _apart(one: Tensor, other: Tensor) -> float:
    """Return max|one - other| over the elements that are finite in both."""
    if one.layout != torch.strided or other.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.shape != other.shape or torch.equal(one, other) or not one.numel():
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    apart = (one.to(wide) - other.to(wide)).abs()
    return float(torch.where(torch.isfinite(apart), apart, 0.0).max())
