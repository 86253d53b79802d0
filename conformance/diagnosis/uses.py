"""A parameter or an input that is used at several places, of which some are missing or counted more than once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradconform.diagnosis.question import Question
from gradconform.diagnosis.replay import replay

#: How often a use may count by mistake.
_USUAL = (0.0, 2.0, 0.5)


def of_param(question: Question, name: str) -> str | None:
    """Name the uses of a tied parameter that are missing, or counted more than once, in what the action added."""
    action = question.step.action
    if action.kind not in {"B", "W"}:
        return None
    again = replay(question.evidence, action.stage, action.mb)
    return _told(question, again.uses(again.stage.get_parameter(name)), "uses of the tied parameter")


def of_input(question: Question, slot: int) -> str | None:
    """Name the paths to an input that are missing, or counted more than once."""
    action = question.step.action
    again = replay(question.evidence, action.stage, action.mb)
    return _told(question, again.uses(again.args[slot]), "paths to the input")


def _told(question: Question, uses: list[Tensor], what: str) -> str | None:
    if len(uses) < 2 or any(use.shape != question.right.shape for use in uses):  # noqa: PLR2004 (a tie takes two)
        return None
    stacked = torch.stack(uses)
    rest = question.right - stacked.sum(0)
    for counts in _counts(len(uses)):
        weights = torch.tensor(counts, dtype=torch.float64).to(stacked.dtype)
        if question.explained_by(rest + torch.tensordot(weights, stacked, dims=1)):
            return _named(counts, what)
    return None


def _counts(count: int) -> Iterator[list[float]]:
    """Yield how often each use may have counted: one alone, one missing, one too often."""
    places = range(count)
    yield from ([float(place == only) for place in places] for only in places)
    yield from ([float(place != missing) for place in places] for missing in places)
    yield from ([factor if place == one else 1.0 for place in places] for one in places for factor in _USUAL)


def _named(counts: list[float], what: str) -> str:
    kept = sum(bool(count) for count in counts)
    if kept < len(counts):
        return f"{kept} of the {len(counts)} {what}: the others are missing"
    told = [f"use {place} counted {count:.3g} times" for place, count in enumerate(counts) if count != 1.0]
    return f"of the {len(counts)} {what}, {', '.join(told)}"
