"""Finds gradients that were added in the wrong place, because a memory layout was misread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradconform.devices.tensor_facts import strides_of
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.drive.reference64 import widen
from gradconform.fixtures.inputs import arrange

from .cause import Cause, Mistake
from .parts import Part, held_before, own_part
from .rerun import rerun_of
from .wrong_tensor import WrongTensor, dense, is_near

_CPU = torch.device("cpu")


def added_at_wrong_address(wrong: WrongTensor, name: str, parts: list[Part]) -> Cause | None:
    """Return where a gradient was added, if it has unusual strides or is in a bucket."""
    evidence, step = wrong.evidence, wrong.step
    own = own_part(wrong, parts)
    if own is None:
        return None
    words = {action.kind for action in evidence.trial.actions[: step.position]}
    if "restride" in words and wrong.explained_by(wrong.right - own + _as_flat(own)):
        return Cause(Mistake.ADDED_AS_FLAT)
    return Cause(Mistake.ADDED_AT_START) if "bucket" in words and _at_start(evidence, step, name) else None


def summed_as_the_argument_is(wrong: WrongTensor, slot: int, parts: list[Part]) -> Cause | None:
    """Return the cause that the gradient of an expanded argument was added up where the argument repeats elements."""
    evidence, step, own = wrong.evidence, wrong.step, own_part(wrong, parts)
    if own is None or evidence.trial.chain:
        return None
    args = evidence.materials.args(step.action.stage, step.action.mb, rerun_of(evidence, step).stage)
    dims = repeated(args[slot])
    summed = own.sum(dims, keepdim=True).expand(own.shape) if dims else None
    return Cause(Mistake.SUMMED_AS_ARGUMENT) if wrong.explained_by(summed) else None


def repeated(value: Any) -> tuple[int, ...]:
    """Return the dimensions in which an expanded tensor repeats its elements."""
    strides = strides_of(value) if isinstance(value, Tensor) else None
    return tuple(dim for dim, stride in enumerate(strides or ()) if stride == 0 and value.shape[dim] > 1)


def _as_flat(own: Tensor) -> Tensor:
    """Return the result of adding to zeros with other strides, element by element in memory order."""
    held = arrange(torch.zeros_like(own), "transposed" if own.dim() > 1 else "strided", _CPU)
    held.as_strided((own.numel(),), (1,)).add_(own.reshape(-1))
    return held


def _at_start(evidence: Evidence, step: Step, name: str) -> bool:
    """Return whether every gradient is the result of adding each at the start of one bucket."""
    own = evidence.reference(step.action.stage, step.action.mb, step.position).params
    given = {one: dense(grad).reshape(-1) for one, grad in step.param_grads.items() if grad is not None and one in own}
    if name not in given:
        return False
    flat = torch.cat([_row(held_before(evidence, one, step), grad.numel()) for one, grad in given.items()])
    for one in given:
        added = own[one]
        if added is not None:
            flat[: added.numel()] += dense(added).reshape(-1)
    values = flat.split([grad.numel() for grad in given.values()])
    return all(is_near(grad, value.to(grad.dtype)) for grad, value in zip(given.values(), values, strict=True))


def _row(held: Tensor | None, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.float64) if held is None else widen(held).reshape(-1)
