"""Diagnosis: what a wrong gradient is made of, found by computing, and said in one clause.

A wrong value is compared with what a mistake would make of the right ones: another combination of the micro-batches'
gradients, another slot's gradient, a transpose, a rounding, some of the uses of a tied parameter, a backward from other
output gradients. What is simplest is asked first. Where nothing fits within rounding, and by more than chance, nothing
is said; where two mistakes fit alike, both are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradconform.diagnosis import absent, combination, elements, places, uses
from gradconform.diagnosis.naming import SWAPPED, named
from gradconform.diagnosis.parts import Part, input_parts, param_parts, run_of, sum_of
from gradconform.diagnosis.question import Question, dense, largest, listed, question_of
from gradconform.diagnosis.replay import replay
from gradconform.diagnosis.starts import misread
from gradconform.evidence import Evidence
from gradconform.observation import Step
from gradconform.reference64 import widen

__all__ = ["of_input", "of_input_attribute", "of_output", "of_param", "of_weight_result"]


def of_param(evidence: Evidence, name: str, step: Step, got: Tensor | None) -> str | None:
    """Return the likely cause of a wrong gradient of parameter ``name`` after ``step``, or None.

    ``got`` is what came, None for no gradient.
    """
    if evidence.trial.hand_grads:
        return misread(evidence, step)
    if got is None:
        told = absent.of_param(evidence, name, step)
        deeper = misread(evidence, step) if told == "never accumulated" else None
        return f"{told}: {deeper}" if deeper else told
    if not _forward_right(evidence, step):
        return misread(evidence, step)
    parts = list(param_parts(evidence, name, step))
    question = _question(evidence, step, got, parts)
    if question is None:
        return None
    return _first(
        lambda: places.written_over(evidence, step, got),
        lambda: _counted_of_param(question, name, combination.usual_change(question, parts)),
        lambda: elements.reshaped(question, got),
        lambda: _either(places.other_param(question, name), lambda: uses.of_param(question, name)),
        lambda: misread(evidence, step),
        lambda: uses.of_param(question, name),
        lambda: places.one_buffer(evidence, name, step),
        lambda: elements.some(question),
        lambda: _counted_of_param(question, name, combination.fitted_change(question, parts)),
    )


def of_input(evidence: Evidence, slot: int, step: Step, got: Tensor | None) -> str | None:
    """Return the likely cause of a wrong gradient of input ``slot`` returned by ``step``, or None.

    ``got`` is what came, None for no gradient; it may have the shape of another slot's.
    """
    if got is None:
        return absent.of_input(evidence, slot, step) or misread(evidence, step)
    return places.other_slot(evidence, slot, step, got) or _of_input_value(evidence, slot, step, got)


def of_input_attribute(evidence: Evidence, slot: int, step: Step, got: Tensor | None) -> str | None:
    """Return the likely cause of a wrong ``.grad`` of input ``slot`` after ``step``, or None."""
    return None if got is None else _of_input_value(evidence, slot, step, got)


def of_weight_result(evidence: Evidence, name: str, step: Step, got: Tensor | None) -> str | None:
    """Return the likely cause of a wrong entry of what W returned for parameter ``name``, or None."""
    return places.stale(evidence, name, step, got)


def of_output(evidence: Evidence, index: int, step: Step, got: Tensor | None) -> str | None:
    """Return the likely cause of a wrong output of a forward, or None."""
    action = step.action
    right = evidence.oracle_step(step).outputs
    if got is None or right is None or not isinstance(right[index], Tensor):
        return None
    question = question_of(evidence, step, got, widen(right[index]), 0.0)
    again = list(replay(evidence, action.stage, action.mb, training=False).outputs.values())[index]
    return "the stage is in eval mode" if question and question.explained_by(dense(again.detach())) else None


def _of_input_value(evidence: Evidence, slot: int, step: Step, got: Tensor) -> str | None:
    if not _forward_right(evidence, step):
        return misread(evidence, step)
    parts = list(input_parts(evidence, slot, step))
    question = _question(evidence, step, got, parts)
    if question is None:
        return "zeros in place of None" if not parts and not bool(dense(got).any()) else None
    return _first(
        lambda: _or_late(named(combination.usual_change(question, parts), combination.factors_of(question))),
        lambda: elements.reshaped(question, got),
        lambda: misread(evidence, step),
        lambda: uses.of_input(question, slot),
        lambda: elements.some(question),
        lambda: named(combination.fitted_change(question, parts), combination.factors_of(question)),
        lambda: places.handed_on(question),
    )


def _either(told: str | None, other: Callable[[], str | None]) -> str | None:
    """Say both of two causes of one value, where the first is one."""
    also = other() if told else None
    return f"{also}; or it {told}" if also else told


def _counted_of_param(question: Question, name: str, change: combination.Change | None) -> str | None:
    """Name a mistake in counting micro-batches, with its reason where nothing was added at all."""
    if change is not None and change.strays and not combination.borne_out(change, _others(question, name)):
        return None  # contexts that are mixed up show in every parameter
    if change is not None and change.strays and question.step.action.misuse:
        return f"{listed(change.strays)} added by {question.step.action}, which is to add nothing"
    told = named(change, combination.factors_of(question))
    why = None
    if told is not None and told.endswith(" missing"):
        why = absent.nothing_added(question.evidence, question.step)
    return f"{told}: {why}" if why else told


def _others(question: Question, name: str) -> Iterator[tuple[Question, list[Part]]]:
    """Yield what has come of the other parameters of the stage."""
    evidence, step = question.evidence, question.step
    for other, got in step.param_grads.items():
        parts = list(param_parts(evidence, other, step)) if got is not None and other != name else []
        asked = None if got is None or not parts else _question(evidence, step, got, parts)
        if asked is not None:
            yield asked, parts


def _or_late(told: str | None) -> str | None:
    """Say that what was returned may be an older gradient, where contexts are no more likely to be swapped."""
    return told and told.replace(SWAPPED, f"returned late, or {SWAPPED}")


def _forward_right(evidence: Evidence, step: Step) -> bool:
    """Tell whether the micro-batch's outputs were right: behind wrong ones no gradient can be."""
    own = (step.action.stage, step.action.mb)
    for seen in run_of(evidence, step).steps:
        if seen.action.kind == "F" and (seen.action.stage, seen.action.mb) == own:
            pairs = zip(seen.outputs or (), evidence.oracle_step(seen).outputs or (), strict=False)
            return all(places.is_near(got, right) for got, right in pairs)
    return True


def _question(evidence: Evidence, step: Step, got: Tensor, parts: list[Part]) -> Question | None:
    """Ask what ``got`` is; where nothing belongs in yet, what has come is wrong by all of it."""
    right = sum_of(parts)
    if right is None and parts:
        right = torch.zeros_like(parts[0].value)
    largest_of_all = max((largest(part.value) for part in parts), default=0.0)
    return None if right is None else question_of(evidence, step, got, right, largest_of_all)


def _first(*causes: Callable[[], str | None]) -> str | None:
    """Return the first cause that fits; those behind it are not computed."""
    return next((found for cause in causes if (found := cause())), None)
