"""Computes how often each part is in a gradient: micro-batches, uses of a tied parameter, or paths to an input."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.drive.evidence import Evidence

from .cause import Cause, Mistake
from .parts import Part
from .rerun import rerun_of
from .wrong_tensor import ENOUGH, FITTED, WrongTensor, flat, rounding

#: The largest reported coefficient of a combination.
_MOST = 3.0

#: How near a coefficient must be to a whole number or a simple fraction to count as one.
_SNAP = 2e-3

#: The micro-batches whose gradients are in a gradient; None for values from before the first action.
Parts = list[int | None]

#: The most frequent multipliers of a gradient, or of the part of one micro-batch in it.
_USUAL = (0.0, 2.0, 0.5, -1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Change:
    """How often each part is in a gradient."""

    parts: list[Part]
    found: list[float]

    @property
    def strays(self) -> tuple[int | None, ...]:
        """The micro-batches of the parts that are in the gradient and do not belong there."""
        return tuple(part.mb for part, count in zip(self.parts, self.found, strict=True) if count and not part.wanted)

    @property
    def value(self) -> Tensor:
        """The sum of the parts."""
        return torch.stack([part.value * count for part, count in zip(self.parts, self.found, strict=True)]).sum(0)


def usual_change(wrong: WrongTensor, parts: list[Part]) -> Change | None:
    """Return the simplest miscounting of micro-batches that explains the wrong value."""
    if not _comparable(wrong, parts):
        return None
    columns = torch.stack([part.value for part in parts])
    changes = list(_changes(parts, factors_of(wrong)))
    values = torch.tensordot(torch.tensor(changes, dtype=torch.float64).to(columns.dtype), columns, dims=1)
    off = (values - wrong.got).abs().reshape(len(changes), -1).amax(1)
    best = float(off.min())
    for change, value, distance in zip(changes, values, off.tolist(), strict=True):
        # In a coarse dtype several may be near enough: the simplest of those that are as near as the nearest.
        if distance <= 2.0 * best + torch.finfo(torch.float64).tiny and wrong.explained_by(value):
            return Change(parts, change)
    return None


def fitted_change(wrong: WrongTensor, parts: list[Part]) -> Change | None:
    """Return the factor of the gradient, or of the action's own part of it; or any simple combination."""
    if not _comparable(wrong, parts):
        return None
    whole = _factor(wrong, wrong.right, torch.zeros_like(wrong.right))
    if whole is not None:
        return Change(parts, [part.wanted * whole for part in parts])
    for own in [part for part in parts if part.own and part.wanted]:
        share = _factor(wrong, own.value, wrong.right - own.value)
        if share is not None:
            return Change(parts, [share if part is own else part.wanted for part in parts])
    return _solved(wrong, parts)


def borne_out(change: Change, others: Iterable[tuple[WrongTensor, list[Part]]]) -> bool:
    """Return whether the same change explains the action's other tensors too."""
    by_mb = {part.mb: count for part, count in zip(change.parts, change.found, strict=True)}
    for wrong, parts in others:
        found = [by_mb.get(part.mb, part.wanted) for part in parts]
        value = Change(parts, found).value
        if wrong.off(value) > 2.0 * rounding(wrong.eps, wrong.scale):
            return False
    return True


def _comparable(wrong: WrongTensor, parts: list[Part]) -> bool:
    return bool(parts) and all(part.value.shape == wrong.got.shape for part in parts)


def _changes(parts: list[Part], factors: Mapping[str, float]) -> Iterator[list[float]]:
    """Yield the coefficients after one mistake, the simplest first."""
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
        if number > 2.0:  # noqa: PLR2004 (two and a half are usual alone)
            yield from (1.0 / number, number)


def _factor(wrong: WrongTensor, value: Tensor, rest: Tensor) -> float | None:
    """Return the number by which ``value``, added to ``rest``, explains the wrong value; None without one."""
    size = float((value * value.conj()).sum().real)
    if size == 0.0:
        return None
    factor = float(((wrong.got - rest) * value.conj()).sum().real) / size
    if abs(factor - 1.0) <= 1e-15:  # noqa: PLR2004 (one, to the available digits)
        return None
    found = wrong.explained_by(factor * value + rest, fitted=1, enough=FITTED)
    return factor if found else None


def _solved(wrong: WrongTensor, parts: list[Part]) -> Change | None:
    """Return the solution for all coefficients, if there are more elements than parts and all are simple numbers."""
    columns = torch.stack([flat(part.value).double() for part in parts], dim=1)
    solved = torch.linalg.lstsq(columns, flat(wrong.got).double().unsqueeze(1), driver="gelsd")
    if int(solved.rank) < len(parts) or not bool((solved.solution.abs() <= _MOST).all()):
        return None
    found = [round(2.0 * float(number)) / 2.0 for number in solved.solution]
    change = Change(parts, found)
    enough = ENOUGH + len(parts) * math.log2(4.0 * _MOST + 1.0)  # one of many combinations
    return change if wrong.explained_by(change.value, enough=enough) else None


def factors_of(wrong: WrongTensor) -> dict[str, float]:
    """Return the most frequent wrong divisors of a gradient."""
    evidence, lane = wrong.evidence, wrong.step.action.stage
    found: dict[str, float] = evidence.recomputed.of(("divisors", lane), lambda: _divisors(evidence, lane))
    return found


def _divisors(evidence: Evidence, lane: int) -> dict[str, float]:
    outputs = evidence.materials.example_outputs(lane)
    leaves = outputs if isinstance(outputs, tuple) else (outputs,)
    batch = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()), 1)
    return {
        "the number of micro-batches": float(evidence.trial.microbatches(lane)),
        "the batch size": float(batch),
    }


def cause_of(change: Change | None, factors: Mapping[str, float]) -> Cause | None:
    """Return how the coefficients differ from the right ones; ``factors`` are possible wrong divisors.

    None for no change.
    """
    if change is None:
        return None
    found = {part.mb: count for part, count in zip(change.parts, change.found, strict=True)}
    wanted = {part.mb: part.wanted for part in change.parts}
    present = [mb for mb, count in wanted.items() if count]
    stray = [mb for mb in wanted if mb not in present and abs(found[mb]) > _SNAP]
    shares = [found[mb] / wanted[mb] for mb in present]
    if present and not stray and max(shares) - min(shares) <= _SNAP * max(map(abs, shares)):
        return _scale(sum(shares) / len(shares), present, factors)
    missing = [mb for mb in present if abs(found[mb]) <= _SNAP]
    twice = [mb for mb in present if abs(found[mb] - wanted[mb] - 1.0) <= _SNAP]
    off = [mb for mb in present if abs(found[mb] - wanted[mb]) > _SNAP]
    odd = [mb for mb in off if mb not in missing and mb not in twice]
    if odd == off and len(odd) == 1 and not stray:
        scale = _scale(found[odd[0]] / wanted[odd[0]], odd, factors)
        return scale and Cause(Mistake.SCALED_IN_PART, microbatches=tuple(odd), causes=(scale,))
    if odd or any(abs(found[mb] - 1.0) > _SNAP for mb in stray):
        held = {mb: count for mb, count in found.items() if abs(count) > _SNAP}
        return Cause(Mistake.COMBINATION, microbatches=tuple(held), factors=tuple(held.values()))
    own = [part.mb for part in change.parts if part.own and part.wanted]
    if missing and twice and twice == own and not stray and len(missing) + len(own) == len(present):
        return Cause(Mistake.SHARED_WITH_BUFFER, microbatches=tuple(twice), factors=(found[twice[0]],))
    return _replaced(present, missing, own, stray) or _miscounted(twice, found, missing, stray)


def _replaced(present: Parts, missing: Parts, own: Parts, added: Parts) -> Cause | None:
    """Return the cause that other parts replace the rest."""
    kept = [mb for mb in present if mb not in missing]
    if missing and added:
        return Cause(Mistake.CONTEXTS_SWAPPED, microbatches=tuple(added), others=tuple(missing))
    if missing and kept == own:
        return Cause(Mistake.OVERWRITTEN, microbatches=tuple(kept[:1]))
    if missing and len(kept) == 1 and len(present) > 2:  # noqa: PLR2004 (of three or more, one is kept)
        return Cause(Mistake.ONLY, microbatches=tuple(kept))
    return None


def _miscounted(twice: Parts, found: Mapping[int | None, float], missing: Parts, added: Parts) -> Cause | None:
    """Return which parts are missing, doubled or added, each separately."""
    causes = [Cause(Mistake.MISSING, microbatches=tuple(missing))] if missing else []
    causes += [Cause(Mistake.COUNTED_TWICE, microbatches=(mb,), factors=(found[mb],)) for mb in twice]
    causes += [Cause(Mistake.ADDED, microbatches=tuple(added))] if added else []
    return Cause(Mistake.SEVERAL, causes=tuple(causes)) if len(causes) > 1 else next(iter(causes), None)


def _scale(factor: float, present: Parts, factors: Mapping[str, float]) -> Cause | None:
    if abs(factor) <= _SNAP:
        return Cause(Mistake.ZERO)
    if abs(factor - 1.0) <= 1e-2:  # noqa: PLR2004 (a percent: an error of rounding, not of counting)
        error = abs(factor - 1.0)
        return Cause(Mistake.RELATIVE_ERROR, factors=(error,)) if error > 1e-15 else None  # noqa: PLR2004 (as in the comment above)
    divisors = tuple(name for name, number in factors.items() if number > 2.0 and abs(factor * number - 1.0) <= _SNAP)  # noqa: PLR2004 (a half has too many causes)
    if divisors:
        return Cause(Mistake.DIVIDED, names=divisors, factors=(factors[divisors[0]],))
    if abs(factor - 2.0) <= _SNAP:
        return Cause(Mistake.COUNTED_TWICE, microbatches=tuple(present), factors=(2.0,))
    multiples = tuple(name for name, number in factors.items() if number > 2.0 and abs(factor / number - 1.0) <= _SNAP)  # noqa: PLR2004 (as above)
    if multiples:
        return Cause(Mistake.MULTIPLIED, names=multiples, factors=(factors[multiples[0]],))
    return Cause(Mistake.SIGN_REVERSED) if abs(factor + 1.0) <= _SNAP else Cause(Mistake.SCALED, factors=(factor,))


#: How often a use may count by mistake.
_USED = (0.0, 2.0, 0.5)


def of_uses(wrong: WrongTensor, name: str) -> Cause | None:
    """Return the uses of a tied parameter that are missing, or counted more than once, in the action's own part."""
    if wrong.step.action.kind not in {"B", "W"}:
        return None
    again = rerun_of(wrong.evidence, wrong.step)
    return _cause_of_uses(
        wrong, again.uses(again.stage.get_parameter(name)), (Mistake.USES_MISSING, Mistake.USES_MISCOUNTED)
    )


def of_paths(wrong: WrongTensor, slot: int) -> Cause | None:
    """Return the paths to an input that are missing, or counted more than once."""
    again = rerun_of(wrong.evidence, wrong.step)
    return _cause_of_uses(wrong, again.uses(again.args[slot]), (Mistake.PATHS_MISSING, Mistake.PATHS_MISCOUNTED))


def _cause_of_uses(wrong: WrongTensor, uses: list[Tensor], kinds: tuple[Mistake, Mistake]) -> Cause | None:
    if len(uses) < 2 or any(use.shape != wrong.right.shape for use in uses):  # noqa: PLR2004 (a tie needs two)
        return None
    stacked = torch.stack(uses)
    rest = wrong.right - stacked.sum(0)
    for counts in _counts(len(uses)):
        weights = torch.tensor(counts, dtype=torch.float64).to(stacked.dtype)
        if wrong.explained_by(rest + torch.tensordot(weights, stacked, dims=1)):
            return _cause(counts, *kinds)
    return None


def _counts(count: int) -> Iterator[list[float]]:
    """Yield how often each use may have counted: one alone, one missing, one too often."""
    places = range(count)
    yield from ([float(place == only) for place in places] for only in places)
    yield from ([float(place != missing) for place in places] for missing in places)
    yield from ([factor if place == one else 1.0 for place in places] for one in places for factor in _USED)


def _cause(counts: list[float], missing: Mistake, miscounted: Mistake) -> Cause:
    kept = sum(bool(count) for count in counts)
    if kept < len(counts):
        return Cause(missing, counts=(kept, len(counts)))
    return Cause(miscounted, counts=(len(counts),), factors=tuple(counts))
