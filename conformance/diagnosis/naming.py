"""Sentences: what a mistake in counting micro-batches is called."""

from __future__ import annotations

from collections.abc import Mapping

from gradconform.diagnosis.combination import Change
from gradconform.diagnosis.question import listed

#: How near a coefficient has to be to a whole number or a simple fraction to be called one.
_SNAP = 2e-3

#: What is said where a micro-batch has the place of another.
SWAPPED = "contexts are swapped"


def named(change: Change | None, factors: Mapping[str, float]) -> str | None:
    """Name in what the coefficients differ from the right ones; ``factors`` are numbers that may have been divided by.

    None for no change.
    """
    if change is None:
        return None
    found = {part.name: count for part, count in zip(change.parts, change.found, strict=True)}
    wanted = {part.name: part.wanted for part in change.parts}
    present = [name for name, count in wanted.items() if count]
    stray = [name for name in wanted if name not in present and abs(found[name]) > _SNAP]
    shares = [found[name] / wanted[name] for name in present]
    if present and not stray and max(shares) - min(shares) <= _SNAP * max(map(abs, shares)):
        return _scale(sum(shares) / len(shares), present, factors)
    missing = [name for name in present if abs(found[name]) <= _SNAP]
    twice = [name for name in present if abs(found[name] - wanted[name] - 1.0) <= _SNAP]
    off = [name for name in present if abs(found[name] - wanted[name]) > _SNAP]
    odd = [name for name in off if name not in missing and name not in twice]
    if odd == off and len(odd) == 1 and not stray:
        return f"{odd[0]}: {_scale(found[odd[0]] / wanted[odd[0]], odd, factors)}"
    if odd or any(abs(found[name] - 1.0) > _SNAP for name in stray):
        return f"it is {' + '.join(f'{count:.3g} × {name}' for name, count in found.items() if abs(count) > _SNAP)}"
    own = [part.name for part in change.parts if part.own and part.wanted]
    return _counted(present, missing, own, stray) or _twice(twice, found, missing, stray)


def _counted(present: list[str], missing: list[str], own: list[str], added: list[str]) -> str | None:
    """Name what is there in place of the rest."""
    kept = [name for name in present if name not in missing]
    if missing and added:
        return f"{listed(added)} in place of {listed(missing)}: {SWAPPED}"
    if missing and kept == own:
        return f"only {kept[0]}: overwritten instead of accumulated"
    if missing and len(kept) == 1 and len(present) > 2:  # noqa: PLR2004 (of three or more, one is left)
        return f"only {kept[0]}: the others are missing"
    return None


def _twice(twice: list[str], found: Mapping[str, float], missing: list[str], added: list[str]) -> str | None:
    """Name what is missing, doubled or added, each by itself."""
    told = [f"{listed(missing)} missing"] if missing else []
    told += [f"{found[name]:.1f} × {name}: counted twice" for name in twice]
    told += [f"{listed(added)} added as well: a running sum, or before its turn"] if added else []
    return "; ".join(told) or None


def _scale(  # noqa: PLR0911 (one return per cause)
    factor: float, present: list[str], factors: Mapping[str, float]
) -> str | None:
    if abs(factor) <= _SNAP:
        return "it is zero"
    if abs(factor - 1.0) <= 1e-2:  # noqa: PLR2004 (a percent: an error of rounding, not of counting)
        return f"a relative error of {abs(factor - 1.0):.2g} everywhere" if abs(factor - 1.0) > 1e-15 else None  # noqa: PLR2004 (as said beside it)
    divisors = [name for name, number in factors.items() if number > 2.0 and abs(factor * number - 1.0) <= _SNAP]  # noqa: PLR2004 (a half has too many causes)
    if divisors:
        return f"scaled by 1/{factors[divisors[0]]:.0f}: divided by {' or '.join(divisors)}"
    if abs(factor - 2.0) <= _SNAP:
        return f"2.0 × {listed(present)}: counted twice"
    multiples = [name for name, number in factors.items() if number > 2.0 and abs(factor / number - 1.0) <= _SNAP]  # noqa: PLR2004 (as above)
    if multiples:
        return f"scaled by {factors[multiples[0]]:.0f}: multiplied by {' or '.join(multiples)}"
    if abs(factor + 1.0) <= _SNAP:
        return "the sign is reversed"
    return f"scaled by {factor:.4g}"
