"""Gradients as combinations of the micro-batches' own: the coefficients that explain a wrong one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.diagnosis.parts import Part
from gradconform.diagnosis.question import ENOUGH, FITTED, Question, flat, rounding
from gradconform.evidence import Evidence

#: The largest coefficient of a combination that is told.
_MOST = 3.0

#: What a gradient, or the part of one micro-batch in it, is most often multiplied by.
_USUAL = (0.0, 2.0, 0.5, -1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Change:
    """How often each part is in a gradient."""

    parts: list[Part]
    found: list[float]

    @property
    def strays(self) -> list[str]:
        """The parts that are in it and do not belong there."""
        return [part.name for part, count in zip(self.parts, self.found, strict=True) if count and not part.wanted]

    @property
    def value(self) -> Tensor:
        """What that adds up to."""
        return torch.stack([part.value * count for part, count in zip(self.parts, self.found, strict=True)]).sum(0)


def usual_change(question: Question, parts: list[Part]) -> Change | None:
    """Return the simplest mistake in counting micro-batches that explains what came."""
    if not _comparable(question, parts):
        return None
    columns = torch.stack([part.value for part in parts])
    changes = list(_changes(parts, factors_of(question)))
    values = torch.tensordot(torch.tensor(changes, dtype=torch.float64).to(columns.dtype), columns, dims=1)
    off = (values - question.got).abs().reshape(len(changes), -1).amax(1)
    best = float(off.min())
    for change, value, distance in zip(changes, values, off.tolist(), strict=True):
        # In a coarse dtype several may be near enough: the simplest of those that are as near as the nearest.
        if distance <= 2.0 * best + torch.finfo(torch.float64).tiny and question.explained_by(value):
            return Change(parts, change)
    return None


def fitted_change(question: Question, parts: list[Part]) -> Change | None:
    """Return by what number the gradient, or what this action has added, is multiplied; or any simple combination."""
    if not _comparable(question, parts):
        return None
    whole = _factor(question, question.right, torch.zeros_like(question.right))
    if whole is not None:
        return Change(parts, [part.wanted * whole for part in parts])
    for own in [part for part in parts if part.own and part.wanted]:
        share = _factor(question, own.value, question.right - own.value)
        if share is not None:
            return Change(parts, [share if part is own else part.wanted for part in parts])
    return _solved(question, parts)


def borne_out(change: Change, others: Iterable[tuple[Question, list[Part]]]) -> bool:
    """Tell whether what has come of other tensors of the action is what the same change makes of them."""
    by_name = {part.name: count for part, count in zip(change.parts, change.found, strict=True)}
    for question, parts in others:
        found = [by_name.get(part.name, part.wanted) for part in parts]
        value = Change(parts, found).value
        if question.off(value) > 2.0 * rounding(question.eps, question.scale):
            return False
    return True


def _comparable(question: Question, parts: list[Part]) -> bool:
    return bool(parts) and all(part.value.shape == question.got.shape for part in parts)


def _changes(parts: list[Part], factors: Mapping[str, float]) -> Iterator[list[float]]:
    """Yield what the coefficients would be after one mistake, the simplest first."""
    wanted = [part.wanted for part in parts]
    places = range(len(parts))

    def changed(by: Mapping[int, float]) -> list[float]:
        return [by.get(place, wanted[place]) for place in places]

    yield from ([count * factor for count in wanted] for factor in (*_USUAL, *_ratios(factors)))
    present = [place for place in places if wanted[place]]
    absent = [place for place in places if not wanted[place]]
    own = [place for place in present if parts[place].own]
    yield from ([float(place == only) for place in places] for only in reversed(present) if len(present) > 1)
    yield from (changed({place: wanted[place] - 1.0}) for place in present)
    yield from (changed({place: wanted[place] + 1.0}) for place in present)
    for place in own:
        yield from (changed({place: wanted[place] - 1.0, other: 1.0}) for other in absent)
    yield from (changed({place: 1.0}) for place in absent)
    yield changed(dict.fromkeys(absent, 1.0))
    yield changed({place: 1.0 for place in absent if place < min(own, default=0)})
    for place in own:
        yield from (changed({place: wanted[place] * factor}) for factor in (*_USUAL, *_ratios(factors)))


def _ratios(factors: Mapping[str, float]) -> Iterator[float]:
    for number in factors.values():
        if number > 2.0:  # noqa: PLR2004 (two and a half are usual by themselves)
            yield from (1.0 / number, number)


def _factor(question: Question, value: Tensor, rest: Tensor) -> float | None:
    """Return the number by which ``value``, added to ``rest``, explains what came; None where none does."""
    size = float((value * value.conj()).sum().real)
    if size == 0.0:
        return None
    factor = float(((question.got - rest) * value.conj()).sum().real) / size
    if abs(factor - 1.0) <= 1e-15:  # noqa: PLR2004 (one, by the digits that there are)
        return None
    found = question.explained_by(factor * value + rest, fitted=1, enough=FITTED)
    return factor if found else None


def _solved(question: Question, parts: list[Part]) -> Change | None:
    """Solve for all coefficients at once, where there are more elements than parts and all are simple numbers."""
    columns = torch.stack([flat(part.value) for part in parts], dim=1)
    solved = torch.linalg.lstsq(columns, flat(question.got).unsqueeze(1), driver="gelsd")
    if int(solved.rank) < len(parts) or not bool((solved.solution.abs() <= _MOST).all()):
        return None
    found = [round(2.0 * float(number)) / 2.0 for number in solved.solution]
    change = Change(parts, found)
    enough = ENOUGH + len(parts) * math.log2(4.0 * _MOST + 1.0)  # one of so many combinations
    return change if question.explained_by(change.value, enough=enough) else None


def factors_of(question: Question) -> dict[str, float]:
    """Return the numbers by which a gradient is most often divided by mistake."""
    return _factors(question.evidence, question.step.action.stage)


def _factors(evidence: Evidence, lane: int) -> dict[str, float]:
    outputs = evidence.materials.example_outputs(lane)
    leaves = outputs if isinstance(outputs, tuple) else (outputs,)
    batch = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 1)
    return {
        "the number of micro-batches": float(evidence.trial.microbatches(lane)),
        "the batch size": float(batch),
    }
