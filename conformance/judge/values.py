"""Compares one tensor with plain autograd's, by form, by NaN and inf, and by the numeric rule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradconform.diagnosis import elements
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.results import Sort
from gradconform.text.counts import count
from gradconform.tolerance import Judgement, Partials, describe, gone_through
from gradconform.tolerance import judge as judge_numbers
from gradconform.trees import equal

from .finding import BIT_EQUAL, Finding, Judged, Kind, Measured

#: The suffix of a finding's place for elements that are not numbers; its numbers may have a separate finding.
NONFINITE = " (NaN and inf)"


@dataclass(frozen=True, slots=True)
class Known:
    """The references of a tensor in addition to plain autograd's.

    ``exact`` is the gradient in float64, None if plain autograd itself is the reference. ``partials`` are the largest
    partial sums so far. ``terms`` measures the terms of the gradient's sum, if possible.
    """

    exact: Tensor | None
    partials: Partials = field(default_factory=Partials)
    terms: Callable[[], Partials] | None = None


#: Values that a backward computes in their own dtype.
_COMPUTED: frozenset[Sort] = frozenset({"input gradient", "parameter gradient"})

#: Returns the known references of a tensor; it is called only if the tensor is not bit-equal to plain autograd's.
Reference = Callable[[], Known]
#: Returns the likely cause of a value, which is None for a missing one; None if no cause is found.
Explain = Callable[[Tensor | None], Cause | None]


def compare(  # noqa: PLR0913, PLR0917 (a tensor, its references, its allowed error, and its description)
    sort: Sort,
    where: str,
    action: object,
    got: object,
    expected: object,
    reference: Reference | None,
    *,
    explain: Explain | None = None,
    factor: float = 1.0,
    spread: float = 0.0,
    zeros_for_none: bool = False,
    run_in: torch.dtype | None = None,
    fills: bool = False,
) -> Judged:
    """Yield the error/bound of one tensor and its findings; a bit-equal tensor is right.

    ``action`` prints as the action after which the tensor was seen. ``explain`` returns the likely cause of a tensor
    that is wrong, missing, of another shape, or not wanted. The bound is ``factor`` times that of the rule, and
    ``spread`` is the difference of two runs of plain autograd. With ``zeros_for_none``, zeros are accepted for None.
    ``run_in`` is the dtype of the run. ``fills``: unwritten memory holds NaN.
    """
    if same_bits(got, expected):
        yield BIT_EQUAL
        return
    label = str(action)
    if not isinstance(expected, Tensor):
        if isinstance(got, Tensor) and not (zeros_for_none and not got.any()):
            text = f"expected None, got {_summary(got)}"
            yield Finding("unexpected", where, label, text, cause=_cause(explain, got), sort=sort)
        return
    if not isinstance(got, Tensor):
        kind = "None" if got is None else f"{got!r}"
        cause = _cause(explain, None) if got is None else None
        yield Finding("missing", where, label, f"expected {_summary(expected)}, got {kind}", cause=cause, sort=sort)
        return
    differs = _form(got, expected)
    if differs is not None:
        cause = _cause(explain, got) if differs[0] == "shape" else None
        yield Finding(differs[0], where, label, differs[1], cause=cause, sort=sort)
        return
    if got.layout != torch.strided:
        got, expected = got.to_dense(), expected.to_dense()
        if equal(got, expected):
            yield BIT_EQUAL
            return
    if not (got.is_floating_point() or got.is_complex()):
        wrong = int((got != expected).sum())
        text = f"expected plain autograd's integers, got others in {wrong} of {count(got.numel(), 'element')}"
        yield Finding("mismatch", where, label, text, cause=_cause(explain, got), sort=sort)
        return
    judged, exact = _by_the_rule(got, expected, reference, spread=spread, factor=factor, run_in=run_in)
    cause = None if judged.passed else _cause(explain, got)
    if cause is None:  # a cause of the numbers explains NaN and inf too
        yield from _nonfinite(sort, where, label, got, expected, within=(exact, judged.bound), fills=fills)
    yield Measured(judged.error_ratio)
    yield from _of_numbers(sort, where, label, got, expected, judged=judged, cause=cause, factor=factor)


def _of_numbers(  # noqa: PLR0913 (as _nonfinite, its judgement, and its allowed error)
    sort: Sort,
    where: str,
    action: str,
    got: Tensor,
    expected: Tensor,
    *,
    judged: Judgement,
    cause: Cause | None,
    factor: float,
) -> Iterator[Finding]:
    """Yield a tensor whose numbers are wrong, or a gradient within the rule that lacks the bits of its dtype.

    If more error than the rule's is allowed, less precision is allowed too.
    """
    if not judged.passed:
        text = _numbers(got, expected, judged)
        yield Finding("mismatch", where, action, text, judged.error, judged.bound, judged.error_ratio, cause, sort=sort)
        return
    narrow = gone_through(got, expected) if factor == 1.0 and sort in _COMPUTED else None
    if narrow is not None:
        name = str(narrow).removeprefix("torch.")
        text = f"every element is exactly a {name}; expected the precision of {got.dtype}"
        yield Finding("mismatch", where, action, text, cause=Cause(Mistake.ROUNDED, names=(name,)), sort=sort)


def same_bits(got: object, expected: object) -> bool:
    """Return whether both are dense tensors of one form and bit-equal: the common case, and a quick one."""
    if got is expected:  # one copy serves for both, because the driver found them equal
        return isinstance(got, Tensor)
    return (
        isinstance(got, Tensor)
        and isinstance(expected, Tensor)
        and got.dtype is expected.dtype
        and got.layout is expected.layout is torch.strided
        and got.device == expected.device
        and got.shape == expected.shape
        and equal(got, expected)
    )


def _cause(explain: Explain | None, got: Tensor | None) -> Cause | None:
    """Return the likely cause; a failed diagnosis is reported and does not change the verdict."""
    if explain is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the forwards that it runs again warned the first time
            return explain(got)
    except Exception as error:  # noqa: BLE001 (the gradient is wrong, whatever the error is)
        return Cause(Mistake.DIAGNOSIS_FAILED, names=(f"{type(error).__name__}: {error}",))


def _form(got: Tensor, expected: Tensor) -> tuple[Kind, str] | None:
    kinds: tuple[Kind, ...] = ("shape", "dtype", "device", "layout")
    for name in kinds:
        one, other = getattr(got, name), getattr(expected, name)
        if one != other:
            shown = (tuple(other), tuple(one)) if name == "shape" else (other, one)
            return name, f"expected {name} {shown[0]}, got {shown[1]}"
    return None


def _nonfinite(  # noqa: PLR0913 (a tensor, its place, and its references)
    sort: Sort,
    where: str,
    action: str,
    got: Tensor,
    expected: Tensor,
    *,
    within: tuple[Tensor | None, float],
    fills: bool,
) -> Iterator[Finding]:
    differs = torch.isfinite(got) != torch.isfinite(expected)
    if got.is_floating_point() and differs.any():
        differs &= ~_overflowing(got, expected, *within)
    number = int(differs.sum())
    if number:
        worst = tuple(int(i) for i in differs.nonzero()[0])
        seen = f"expected {describe(expected[worst])}, got {describe(got[worst])}"
        text = f"at {list(worst)}: {seen} ({count(number, 'element')})"
        cause = elements.nonfinite(got, expected, differs, fills=fills)
        yield Finding("nonfinite", f"{where}{NONFINITE}", action, text, cause=cause, sort=sort)


def _overflowing(got: Tensor, expected: Tensor, exact: Tensor | None, bound: float) -> Tensor:
    """Return the elements that overflow only because of the order of sums: float64 has a number there.

    If plain autograd overflows, a value within the bound of float64 is right. Another overflow is right too: inf, or
    the NaN of two infinities that cancel. If it does not overflow, inf is right next to the largest number of the
    dtype.
    """
    if exact is None:
        return torch.zeros_like(got, dtype=torch.bool)
    shown, exact, largest = got.detach().cpu().double(), exact.detach().cpu().double(), torch.finfo(got.dtype).max
    near = (shown - exact).abs() <= bound
    spared = ~expected.isfinite().cpu() & exact.isfinite() & (near | ~shown.isfinite())
    past = shown.isinf() & expected.isfinite().cpu() & (shown.sign() == exact.sign())
    past &= exact.isfinite() & (exact.abs() + bound > largest)
    return (spared | past).to(got.device)


def _by_the_rule(  # noqa: PLR0913 (a tensor, its references, and its allowed error)
    got: Tensor,
    expected: Tensor,
    reference: Reference | None,
    *,
    spread: float,
    factor: float,
    run_in: torch.dtype | None,
) -> tuple[Judgement, Tensor | None]:
    """Return the judgement by the rule, and the gradient in float64, None if plain autograd's is the reference.

    A gradient in float64 of a run in a narrower dtype is computed from values that were rounded to that dtype.
    """
    known = Known(None) if reference is None else reference()
    wide = expected.dtype in {torch.float64, torch.complex128}
    narrower = run_in if wide and run_in is not None and run_in != torch.float64 else None
    exact = None if wide and narrower is None else known.exact
    judged = judge_numbers(
        got, expected, exact, known.partials, spread=spread, factor=factor, terms=known.terms, computed_in=narrower
    )
    return judged, exact


def _numbers(got: Tensor, expected: Tensor, judged: Judgement) -> str:
    one, other = expected[judged.worst], got[judged.worst]
    return (
        f"worst at {list(judged.worst)}: expected {describe(one, other)}, got {describe(other, one)}; "
        f"error {judged.error:.3g}, bound {judged.bound:.3g}, "
        f"error/bound {judged.error_ratio:.3g}"
    )


def _summary(tensor: Tensor) -> str:
    largest = float(tensor.to_dense().abs().max()) if tensor.numel() and tensor.dtype != torch.bool else 0.0
    return f"a tensor of shape {tuple(tensor.shape)} with largest element {largest:.3g}"
