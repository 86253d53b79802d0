"""The right numbers in the wrong place: another slot's, another parameter's, an output gradient, an old value."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradconform.diagnosis.parts import output_grads_at, param_parts, step_before, sum_of
from gradconform.diagnosis.question import ENOUGH, Question, dense, largest, rounding
from gradconform.evidence import Evidence
from gradconform.observation import Step
from gradconform.reference64 import widen
from gradconform.watch import write_over

#: The least number of elements by which two tensors that hold the same bits are one buffer and no chance.
_SHARED = 3


def other_slot(evidence: Evidence, slot: int, step: Step, got: Tensor) -> str | None:
    """Name the input whose gradient ``got`` is; its own may have another shape, or be None."""
    grads = evidence.reference(step.action.stage, step.action.mb).inputs
    for index, grad in enumerate(grads):
        if index != slot and grad is not None and is_value(got, dense(grad)):
            return f"equals the gradient of input {index}: slots are swapped or shifted"
    return None


def other_param(question: Question, name: str) -> str | None:
    """Name the parameter whose gradient came."""
    evidence, step = question.evidence, question.step
    for other in evidence.reference(step.action.stage, 0).params:
        total = None if other == name else sum_of(list(param_parts(evidence, other, step)))
        if total is not None and question.explained_by(total):
            return f"equals the gradient of {other}: parameters are mixed up, or share a buffer"
    return None


def one_buffer(evidence: Evidence, name: str, step: Step) -> str | None:
    """Name the parameter whose gradient begins with the same bits, where plain autograd's does not."""
    usual = evidence.oracle_step(step).param_grads
    for other, held in step.param_grads.items():
        if other != name and _begin_alike(step.param_grads, name, other) and not _begin_alike(usual, name, other):
            shorter = min(_size(held), _size(step.param_grads[name]))
            return f"the first {shorter} elements are those of the gradient of {other}: one buffer for both"
    return None


def _size(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.numel()


def _begin_alike(grads: Mapping[str, Tensor | None], name: str, other: str) -> bool:
    one, two = grads.get(name), grads.get(other)
    if one is None or two is None or one.layout != torch.strided or two.layout != torch.strided:
        return False
    count = min(one.numel(), two.numel())
    start = one.reshape(-1)[:count]
    return count >= _SHARED and bool(start.any()) and torch.equal(start, two.reshape(-1)[:count])


def written_over(evidence: Evidence, step: Step, got: Tensor) -> str | None:
    """Say that a gradient holds what the caller has written over a gradient that it was handed."""
    before = evidence.trial.actions[: step.position + 1]
    over = [action for action in before if action.kind == "overwrite" and action.stage == step.action.stage]
    if not over or got.layout != torch.strided:
        return None
    sample = torch.empty_like(got)
    write_over(sample)
    return (
        f"what the caller wrote over a returned gradient in {over[-1]}: one storage"
        if torch.equal(got, sample)
        else None
    )


def handed_on(question: Question) -> str | None:
    """Name the output gradient that came back as it was."""
    lane, mb = question.step.action.stage, question.step.action.mb
    for index, grad in enumerate(output_grads_at(question.evidence, lane, mb)):
        if isinstance(grad, Tensor) and question.explained_by(dense(widen(grad))):
            return f"equals output gradient {index}: handed on as it came"
    return None


def stale(evidence: Evidence, name: str, step: Step, got: Tensor | None) -> str | None:
    """Say that what W returns for a parameter is what stood before this W."""
    before = step_before(evidence, step)
    held = None if before is None else before.param_grads.get(name)
    if got is None or held is None:
        return "what stood before this W, which was nothing" if got is held and before is not None else None
    now = step.param_grads.get(name)
    idle = now is not None and now.shape == held.shape and torch.equal(dense(now), dense(held))
    alike = not idle and got.shape == held.shape and torch.equal(dense(got), dense(held))
    return "what stood before this W" if alike else None


def is_near(got: object, right: object) -> bool:
    """Tell whether two outputs are the same but for rounding."""
    if not isinstance(got, Tensor) or not isinstance(right, Tensor):
        return got is right or got == right
    if got.shape != right.shape or got.dtype != right.dtype:
        return False
    if torch.equal(got, right) or not (got.is_floating_point() or got.is_complex()):
        return torch.equal(got, right)
    off = largest(torch.nan_to_num(widen(dense(got)) - widen(dense(right))))
    return off <= 2.0 * rounding(torch.finfo(got.dtype).eps, largest(widen(dense(right))))


def is_value(got: Tensor, value: Tensor) -> bool:
    """Tell whether ``got`` is another value within rounding, and no chance: each element tells its digits."""
    wide = widen(dense(got))
    size = largest(value)
    if wide.shape != value.shape or not (got.is_floating_point() or got.is_complex()) or not size:
        return False
    eps = torch.finfo(got.dtype).eps
    allowed = rounding(eps, size)
    digits = -torch.log2(torch.tensor(allowed / size)).item()
    return largest(wide - value) <= allowed and got.numel() * digits >= ENOUGH
