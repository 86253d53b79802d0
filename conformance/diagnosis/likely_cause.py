"""Finds the likely cause of a wrong tensor by trying hypotheses in order, the simplest first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.drive.reference64 import widen

from . import combination, elements, inside, memory_layout, misplaced, missing
from .cause import Cause, Mistake
from .hooks import hooked, of_caller
from .misdirected import other_session, recomputed_alone
from .padding import padding
from .parts import Part, added, forward_right, input_parts, of_microbatch, param_parts, sum_of
from .rerun import Rerun, rerun_of
from .wrong_start import misread, otherwise
from .wrong_tensor import WrongTensor, dense, largest, wrong_tensor


def of_param(evidence: Evidence, name: str, step: Step, got: Tensor | None) -> Cause | None:
    """Return the likely cause of a wrong gradient of parameter ``name`` after ``step``, or None.

    ``got`` is the actual value, None for no gradient.
    """
    if evidence.trial.hand_grads:
        return misread(evidence, step)
    if got is None:
        cause = missing.of_param(evidence, name, step)
        unexplained = cause.kind is Mistake.NEVER_ACCUMULATED and cause.why is None
        return replace(cause, why=misread(evidence, step)) if unexplained else cause
    if not forward_right(evidence, step):
        return misread(evidence, step)
    if evidence.oracle_step(step).param_grads.get(name) is None and not bool(dense(got).any()):
        return Cause(Mistake.ZEROS_FOR_NONE)
    got, parts = _finite(got, list(param_parts(evidence, name, step)))
    wrong = _wrong_tensor(evidence, step, got, parts)
    if wrong is None:
        return None
    return _first(
        lambda: misplaced.written_over(evidence, step, got),
        lambda: misplaced.received_over(wrong, name),
        lambda: hooked(evidence, step),
        lambda: of_caller(wrong, name, parts),
        lambda: misplaced.beside_the_buffer(wrong, name),
        lambda: memory_layout.added_at_wrong_address(wrong, name, parts),
        lambda: _of_this_session_alone(wrong, name, parts),
        lambda: elements.flushed(wrong, parts),
        lambda: _counted_of_param(wrong, name, combination.usual_change(wrong, parts)),
        lambda: elements.reshaped(wrong, got),
        lambda: elements.across(wrong, parts),
        lambda: _either(misplaced.other_param(wrong, name), lambda: combination.of_uses(wrong, name)),
        lambda: misread(evidence, step),
        lambda: misplaced.part_of_other_param(wrong, name, parts),
        lambda: misplaced.rows_of_another(wrong, parts),
        lambda: inside.rows_left_out(wrong, name, parts),
        lambda: inside.activations_of_another_layer(wrong, name, parts),
        lambda: elements.in_part(wrong, parts),
        lambda: combination.of_uses(wrong, name),
        lambda: misplaced.one_buffer(evidence, name, step),
        lambda: elements.cut_off(wrong, parts),
        lambda: elements.some(wrong),
        lambda: _counted_of_param(wrong, name, combination.fitted_change(wrong, parts)),
    )


def of_input(evidence: Evidence, slot: int, step: Step, got: Tensor | None) -> Cause | None:
    """Return the likely cause of a wrong gradient of input ``slot`` returned by ``step``, or None.

    ``got`` is the actual value, None for no gradient; it may have the shape of another slot's.
    """
    if got is None:
        return missing.of_input(evidence, slot, step) or misread(evidence, step)
    return misplaced.other_slot(evidence, slot, step, got) or of_input_value(evidence, slot, step, got)


def of_weight_result(evidence: Evidence, name: str, step: Step, got: Tensor | None) -> Cause | None:
    """Return the likely cause of a wrong entry of W's result for parameter ``name``, or None."""
    return misplaced.stale(evidence, name, step, got)


def of_output(evidence: Evidence, index: int, step: Step, got: Tensor | None) -> Cause | None:
    """Return the likely cause of a wrong output of a forward, or None."""
    right = evidence.oracle_step(step).outputs
    if got is None or right is None or not isinstance(right[index], Tensor):
        return None
    wrong = wrong_tensor(evidence, step, got, widen(right[index]), 0.0)
    if wrong is None:
        return None
    return next(
        (cause for cause, again in otherwise(evidence, step) if wrong.explained_by(_output(again, index))), None
    )


def of_change_in_flight(
    evidence: Evidence, name: object, step: Step, right: Tensor | None, got: Tensor | None
) -> Cause | None:
    """Return why a gradient of one micro-batch, changed by its caller in flight, is missing or scaled, or None."""
    if got is None:
        replaced = isinstance(name, str) and any(action.kind == "replace" for action in evidence.trial.actions)
        return Cause(Mistake.NEVER_ACCUMULATED, why=Cause(Mistake.MEMORY_REPLACED)) if replaced else None
    if right is None:
        return None
    parts = [Part(step.action.mb, dense(widen(right)), 1.0, own=True)]
    wrong = _wrong_tensor(evidence, step, got, parts)
    if wrong is None:
        return None
    return combination.cause_of(combination.fitted_change(wrong, parts), combination.factors_of(wrong))


def _output(again: Rerun, index: int) -> Tensor:
    return dense(list(again.outputs.values())[index].detach())


def of_input_value(evidence: Evidence, slot: int, step: Step, got: Tensor | None) -> Cause | None:
    """Return the likely cause of a wrong value of the gradient of input ``slot``, returned or in ``.grad``, if any."""
    if got is None:
        return None
    if not forward_right(evidence, step):
        return misread(evidence, step)
    got, parts = _finite(got, list(input_parts(evidence, slot, step)))
    wrong = _wrong_tensor(evidence, step, got, parts)
    if wrong is None:
        return Cause(Mistake.ZEROS_FOR_NONE) if not parts and not bool(dense(got).any()) else None
    return _first(
        lambda: hooked(evidence, step),
        lambda: elements.flushed(wrong, parts),
        lambda: _counted_of_input(wrong, combination.usual_change(wrong, parts)),
        lambda: elements.reshaped(wrong, got),
        lambda: elements.across(wrong, parts),
        lambda: memory_layout.summed_as_the_argument_is(wrong, slot, parts),
        lambda: misread(evidence, step),
        lambda: elements.in_part(wrong, parts),
        lambda: combination.of_paths(wrong, slot),
        lambda: elements.cut_off(wrong, parts),
        lambda: elements.some(wrong),
        lambda: combination.cause_of(combination.fitted_change(wrong, parts), combination.factors_of(wrong)),
        lambda: misplaced.handed_on(wrong),
    )


def _either(cause: Cause | None, other: Callable[[], Cause | None]) -> Cause | None:
    """Return both causes of one value, if the first exists."""
    also = other() if cause else None
    return Cause(Mistake.EITHER, causes=(also, cause)) if cause and also else cause


def _counted_of_param(wrong: WrongTensor, name: str, change: combination.Change | None) -> Cause | None:
    """Return a miscounting of micro-batches, with its reason if nothing was added at all."""
    if change is not None and change.strays and not combination.borne_out(change, _others(wrong, name)):
        return None  # mixed-up contexts show in every parameter
    change = None if _with_other_session(wrong, name, change) else change
    if change is not None and change.strays and wrong.step.action.misuse:
        return Cause(Mistake.ADDED_IN_MISUSE, microbatches=change.strays, action=str(wrong.step.action))
    elsewhere = None if change is None else _unwritten(wrong, change) or _of_other_session(wrong, change)
    if elsewhere is not None:
        return elsewhere
    cause = combination.cause_of(change, combination.factors_of(wrong))
    if change is not None and cause is not None and cause.kind in {Mistake.SCALED, Mistake.SCALED_IN_PART}:
        return _not_added_again(wrong, change) or cause
    if cause is not None and cause.kind in {Mistake.MISSING, Mistake.ONLY}:
        why = missing.nothing_added(wrong.evidence, wrong.step) or recomputed_alone(wrong.evidence, name, wrong.step)
        return replace(cause, why=why)
    zeroed = _zeroed(wrong, cause)
    unexplained = zeroed is not None and zeroed.kind is Mistake.ZERO and zeroed.why is None
    return replace(zeroed, why=_of_equal_values(wrong, name)) if zeroed and unexplained else zeroed


def _of_equal_values(wrong: WrongTensor, name: str) -> Cause | None:
    """Return the other parameter that has the same values, for which this one may be taken."""
    held = dict(rerun_of(wrong.evidence, wrong.step).stage.named_parameters())
    equal = (other for other, one in held.items() if other != name and torch.equal(one, held[name]))
    found = next(equal, None)
    return None if found is None else Cause(Mistake.EQUAL_VALUES, names=(found,))


def _of_other_session(wrong: WrongTensor, change: combination.Change) -> Cause | None:
    """Return the cause that the W of another session added micro-batches."""
    owner = other_session(wrong.evidence, wrong.step, change.strays)
    return None if owner is None else Cause(Mistake.OTHER_SESSION, microbatches=change.strays, action=str(owner))


def _unwritten(wrong: WrongTensor, change: combination.Change) -> Cause | None:
    """Return the cause that a micro-batch without rows added what another one had left in a buffer."""
    own = wrong.step.action.mb
    forward = next((seen for seen in of_microbatch(wrong.evidence, wrong.step) if seen.action.kind == "F"), None)
    outputs = [] if forward is None else [one for one in forward.outputs or () if isinstance(one, Tensor)]
    if wrong.step.action.kind not in {"B", "W"} or not outputs or any(one.numel() for one in outputs):
        return None
    counts = list(zip(change.parts, change.found, strict=True))
    again = tuple(part.mb for part, count in counts if count == part.wanted + 1.0 and part.mb != own)
    kept = all(count >= part.wanted for part, count in counts if part.mb != own)
    return Cause(Mistake.UNWRITTEN_FOR_NO_ROWS, microbatches=again, others=(own,)) if again and kept else None


def _with_other_session(wrong: WrongTensor, name: str, change: combination.Change | None) -> bool:
    """Return whether the gradients of other sessions are miscounted or are the only ones.

    Then no micro-batch of this session explains the value.
    """
    shared = len(wrong.evidence.trial.sharing(wrong.step.action.stage, name)) > 1
    if change is None or not shared:
        return False
    counts = list(zip(change.parts, change.found, strict=True))
    others = [count - part.wanted for part, count in counts if part.mb is None]
    return any(others) or (bool(others) and not any(count for part, count in counts if part.mb is not None))


def _of_this_session_alone(wrong: WrongTensor, name: str, parts: list[Part]) -> Cause | None:
    """Return the cause that the gradients that other sessions added to a shared parameter are missing."""
    shared = len(wrong.evidence.trial.sharing(wrong.step.action.stage, name)) > 1
    own = sum_of([part for part in parts if part.mb is not None]) if shared else None
    return Cause(Mistake.OTHER_SESSIONS_MISSING) if wrong.explained_by(own) else None


def _not_added_again(wrong: WrongTensor, change: combination.Change) -> Cause | None:
    """Return the cause that a micro-batch with a repeated number is missing, if the action added nothing at all."""
    own = next((part for part in change.parts if part.own and part.wanted > 1.0), None)
    if own is None or added(wrong.evidence, wrong.step):
        return None
    why = missing.nothing_added(wrong.evidence, wrong.step)
    return Cause(Mistake.MISSING, microbatches=(own.mb,), why=why)


def _others(wrong: WrongTensor, name: str) -> Iterator[tuple[WrongTensor, list[Part]]]:
    """Yield the values of the other parameters of the stage."""
    evidence, step = wrong.evidence, wrong.step
    for other, got in step.param_grads.items():
        parts = list(param_parts(evidence, other, step)) if got is not None and other != name else []
        wrong_value = None if got is None or not parts else _wrong_tensor(evidence, step, got, parts)
        if wrong_value is not None:
            yield wrong_value, parts


def _counted_of_input(wrong: WrongTensor, change: combination.Change | None) -> Cause | None:
    """Return a miscounting of micro-batches: the returned value may also be an older gradient."""
    cause = combination.cause_of(change, combination.factors_of(wrong))
    swapped = cause is not None and cause.kind is Mistake.CONTEXTS_SWAPPED
    return replace(cause, kind=Mistake.CONTEXTS_SWAPPED_OR_LATE) if cause and swapped else _zeroed(wrong, cause)


def _zeroed(wrong: WrongTensor, cause: Cause | None) -> Cause | None:
    """Return why a gradient is zero, if that is the cause; one clipped far below its value is not zero."""
    if cause is None or cause.kind is not Mistake.ZERO:
        return cause
    clipped = elements.clipped(wrong) if bool(wrong.got.any()) else None
    why = padding(wrong.evidence, wrong.step)
    return clipped or (None if why else misread(wrong.evidence, wrong.step)) or replace(cause, why=why)


def _wrong_tensor(evidence: Evidence, step: Step, got: Tensor, parts: list[Part]) -> WrongTensor | None:
    """Return the wrong tensor for ``got``; if nothing belongs in it yet, its whole value is the error."""
    right = sum_of(parts)
    if right is None and parts:
        right = torch.zeros_like(parts[0].value)
    largest_of_all = max((largest(part.value) for part in parts), default=0.0)
    return None if right is None else wrong_tensor(evidence, step, got, right, largest_of_all)


def _finite(got: Tensor, parts: list[Part]) -> tuple[Tensor, list[Part]]:
    """Return a value and its parts with zeros where one of them is not finite: no sum explains NaN and inf."""
    own = [part.value for part in parts if part.value.shape == got.shape]
    floating = [one for one in (got, *own) if one.is_floating_point() or one.is_complex()]
    if all(math.isfinite(largest(one)) for one in floating):  # common, and quick
        return got, parts
    kept = torch.stack([torch.isfinite(dense(one).abs()).to(got.device) for one in floating]).all(0)
    masked = [
        replace(part, value=torch.where(kept, dense(part.value), 0.0)) if part.value.shape == got.shape else part
        for part in parts
    ]
    return torch.where(kept, dense(got), 0.0), masked


def _first(*causes: Callable[[], Cause | None]) -> Cause | None:
    """Return the first cause that fits; the later ones are not computed."""
    return next((found for cause in causes if (found := cause())), None)
