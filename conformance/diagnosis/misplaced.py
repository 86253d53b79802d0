"""Finds right values in the wrong place: another slot's or parameter's, an output gradient, or an old value."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.drive.reference64 import widen
from gradconform.drive.stage_changes import write_over
from gradconform.trees import tensors
from gradconform.trial.program import Action

from .cause import Cause, Mistake
from .parts import Part, held_before, output_grads_at, own_part, param_parts, same, step_before, sum_of
from .rerun import rerun_of
from .wrong_tensor import WrongTensor, dense, is_value

#: The least number of elements with the same bits that identify one buffer rather than chance.
_SHARED = 3


def other_slot(evidence: Evidence, slot: int, step: Step, got: Tensor) -> Cause | None:
    """Return the input whose gradient ``got`` is; its own may have another shape, or be None."""
    grads = evidence.reference(step.action.stage, step.action.mb).inputs
    for index, grad in enumerate(grads):
        if index != slot and grad is not None and is_value(got, dense(grad)):
            return Cause(Mistake.OTHER_INPUT, slots=(index,))
    return None


def beside_the_buffer(wrong: WrongTensor, name: str) -> Cause | None:
    """Return the cause that the action changed .grad, and not the caller's buffer, of which .grad was a view."""
    before, now = step_before(wrong.evidence, wrong.step), wrong.step
    if before is None or name not in now.beside_buffer or not same(before.param_grads.get(name), now.param_grads[name]):
        return None
    kept = before.beside_buffer if name in before.beside_buffer else before.param_grads
    return None if same(kept.get(name), now.beside_buffer[name]) else Cause(Mistake.BESIDE_BUFFER)


def other_param(wrong: WrongTensor, name: str) -> Cause | None:
    """Return the parameter whose gradient was stored instead."""
    evidence, step = wrong.evidence, wrong.step
    for other in evidence.reference(step.action.stage, 0).params:
        total = None if other == name else sum_of(list(param_parts(evidence, other, step)))
        if total is not None and wrong.explained_by(total):
            return Cause(Mistake.OTHER_PARAMETER, names=(other,))
    return None


def part_of_other_param(wrong: WrongTensor, name: str, parts: list[Part]) -> Cause | None:
    """Return the parameter whose gradient the action added instead of this one's."""
    step, own = wrong.step, own_part(wrong, parts)
    if own is None:
        return None
    for other, grad in wrong.evidence.reference(step.action.stage, step.action.mb, step.position + 1).params.items():
        if grad is None or other == name or grad.shape != wrong.right.shape:
            continue
        if wrong.explained_by(wrong.right - own + dense(grad)):
            return Cause(Mistake.ADDED_OF_OTHER_PARAMETER, microbatches=(step.action.mb,), names=(other,))
    return None


def rows_of_another(wrong: WrongTensor, parts: list[Part]) -> Cause | None:
    """Return the micro-batch whose rows of a parameter got what the action has to add to other rows."""
    own = own_part(wrong, parts)
    if own is None or own.dim() < 2:  # noqa: PLR2004 (rows)
        return None
    rows = _rows_with_values(own)
    for part in parts:
        others = _rows_with_values(part.value) if not part.own and part.value.shape == own.shape else rows
        if len(others) == len(rows) < len(own) and not torch.equal(others, rows):
            moved = torch.zeros_like(own)
            moved[others] = own[rows]
            if wrong.explained_by(wrong.right - own + moved):
                return Cause(Mistake.ROWS_OF_OTHER, microbatches=(part.mb,))
    return None


def _rows_with_values(tensor: Tensor) -> Tensor:
    return tensor.reshape(len(tensor), -1).abs().sum(1).nonzero().reshape(-1)


def one_buffer(evidence: Evidence, name: str, step: Step) -> Cause | None:
    """Return the parameter whose gradient begins with the same bits, if plain autograd's does not."""
    usual = evidence.oracle_step(step).param_grads
    for other, held in step.param_grads.items():
        if other != name and _begin_alike(step.param_grads, name, other) and not _begin_alike(usual, name, other):
            shorter = min(_size(held), _size(step.param_grads[name]))
            return Cause(Mistake.ONE_BUFFER, names=(other,), counts=(shorter,))
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


def written_over(evidence: Evidence, step: Step, got: Tensor) -> Cause | None:
    """Return the cause that a gradient holds what the caller wrote into a gradient that it received."""
    before = evidence.trial.actions[: step.position + 1]
    over = [action for action in before if action.kind == "overwrite" and action.stage == step.action.stage]
    if not over or got.layout != torch.strided:
        return None
    sample = torch.empty_like(got)
    write_over(sample)
    return Cause(Mistake.WRITTEN_OVER, action=str(over[-1])) if torch.equal(got, sample) else None


def received_over(wrong: WrongTensor, name: str) -> Cause | None:
    """Return the cause that W used what the caller wrote into the output gradients after their I."""
    evidence, step = wrong.evidence, wrong.step
    own = Action("receive", step.action.mb, step.action.stage)
    if step.action.kind != "W" or own not in evidence.trial.actions[: step.position]:
        return None
    again = rerun_of(evidence, step)
    written = [None if grad is None else grad.clone() for grad in again.given]
    for grad in tensors(written):
        write_over(grad)
    added, held = again.grads(written).params[name], held_before(evidence, name, step)
    total = added if held is None or added is None else added + held
    return Cause(Mistake.RECEIVED_OVER, action=str(own)) if wrong.explained_by(total) else None


def handed_on(wrong: WrongTensor) -> Cause | None:
    """Return the output gradient that was returned unchanged."""
    lane, mb = wrong.step.action.stage, wrong.step.action.mb
    for index, grad in enumerate(output_grads_at(wrong.evidence, lane, mb)):
        if isinstance(grad, Tensor) and wrong.explained_by(dense(widen(grad))):
            return Cause(Mistake.OUTPUT_GRAD_HANDED_ON, slots=(index,))
    return None


def stale(evidence: Evidence, name: str, step: Step, got: Tensor | None) -> Cause | None:
    """Return the cause that W returns a parameter's value from before this W."""
    before = step_before(evidence, step)
    held = None if before is None else before.param_grads.get(name)
    if got is None or held is None:
        return Cause(Mistake.STALE_NOTHING) if got is held and before is not None else None
    return Cause(Mistake.STALE) if same(got, held) and not same(step.param_grads.get(name), held) else None
