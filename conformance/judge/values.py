"""Compares one tensor with plain autograd's, by form, by NaN and inf, and by the numeric rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradconform.diagnosis import elements
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.results import Sort
from gradconform.tolerance import Judgement, Partials, describe, gone_through
from gradconform.tolerance import judge as judge_numbers
from gradconform.trees import equal

from .finding import BIT_EQUAL, Finding, Judged, Kind, Measured

#: Ends the place of a finding on what of a tensor is no number, beside which its numbers may have one of their own.
NONFINITE = " (NaN and inf)"


@dataclass(frozen=True, slots=True)
class Known:
    """What a tensor is held against beside plain autograd.

    ``exact`` is the gradient in float64, None where plain autograd itself is the reference; ``partials`` are the
    largest partial sums met; ``terms`` measures what the gradient is the sum of, where that can be told.
    """

    exact: Tensor | None
    partials: Partials = field(default_factory=Partials)
    terms: Callable[[], Partials] | None = None


#: What a backward computes in the dtype that it has.
_COMPUTED: frozenset[Sort] = frozenset({"input gradient", "parameter gradient"})

#: Gives what is known of a tensor; it is asked for that where the tensor is not bit-equal to plain autograd's.
Reference = Callable[[], Known]
#: Gives the likely cause of what came, None for nothing; None where there is no telling.
Explain = Callable[[Tensor | None], Cause | None]


def compare(  # noqa: PLR0913, PLR0917 (a tensor, what it is held against, how much room it has, what to say of it)
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
    """Yield how near one tensor came and what is wrong with it; what is bit-equal to plain autograd is right.

    ``action`` is what prints as the action behind which it was seen. ``explain`` is asked for the likely cause of a
    tensor that is wrong, missing, of another shape, or not wanted. The bound is ``factor`` times that of the rule,
    ``spread`` is how far two runs of plain autograd are apart, and zeros may stand where it has None if
    ``zeros_for_none``. ``run_in`` is the dtype of the run. ``fills``: memory that nobody has written holds NaN.
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
        text = f"expected plain autograd's integers; {int((got != expected).sum())} elements differ"
        yield Finding("mismatch", where, label, text, cause=_cause(explain, got), sort=sort)
        return
    judged, exact = _by_the_rule(got, expected, reference, spread=spread, factor=factor, run_in=run_in)
    yield from _nonfinite(sort, where, label, got, expected, within=(exact, judged.bound), fills=fills)
    yield Measured(judged.headroom)
    if not judged.passed:
        text, cause = _numbers(got, expected, judged), _cause(explain, got)
        yield Finding("mismatch", where, label, text, judged.error, judged.bound, judged.headroom, cause, sort=sort)
    else:
        yield from _rounded(sort, where, label, got, expected, factor=factor)


def _rounded(  # noqa: PLR0913 (as _nonfinite, and how much room it has)
    sort: Sort, where: str, action: str, got: Tensor, expected: Tensor, *, factor: float
) -> Iterator[Finding]:
    """Yield a gradient that is within the rule, and has none of the bits by which its dtype is finer than another.

    Where there is more room than the rule's, less precision is allowed.
    """
    narrow = gone_through(got, expected) if factor == 1.0 and sort in _COMPUTED else None
    if narrow is not None:
        name = str(narrow).removeprefix("torch.")
        text = f"every element is exactly a {name}; expected the precision of {got.dtype}"
        yield Finding("mismatch", where, action, text, cause=Cause(Mistake.ROUNDED, names=(name,)), sort=sort)


def same_bits(got: object, expected: object) -> bool:
    """Tell whether both are dense tensors of one form and bit-equal: the common case, and a quick one."""
    if got is expected:  # one copy stands for both, where the driver has found them equal
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
    """Ask for the likely cause; a diagnosis that fails says so, and takes nothing from the verdict."""
    try:
        return None if explain is None else explain(got)
    except Exception as error:  # noqa: BLE001 (whatever it is, the gradient is wrong all the same)
        return Cause(Mistake.DIAGNOSIS_FAILED, names=(f"{type(error).__name__}: {error}",))


def _form(got: Tensor, expected: Tensor) -> tuple[Kind, str] | None:
    kinds: tuple[Kind, ...] = ("shape", "dtype", "device", "layout")
    for name in kinds:
        one, other = getattr(got, name), getattr(expected, name)
        if one != other:
            shown = (tuple(other), tuple(one)) if name == "shape" else (other, one)
            return name, f"expected {name} {shown[0]}, got {shown[1]}"
    return None


def _nonfinite(  # noqa: PLR0913 (a tensor, where it was seen, and what it is held against)
    sort: Sort,
    where: str,
    action: str,
    got: Tensor,
    expected: Tensor,
    *,
    within: tuple[Tensor | None, float],
    fills: bool,
) -> Iterator[Finding]:
    differs = (torch.isnan(got) != torch.isnan(expected)) | (torch.isinf(got) != torch.isinf(expected))
    if got.is_floating_point():
        differs |= torch.isposinf(got) != torch.isposinf(expected)
        differs &= ~_overflowing(got, expected, *within) if differs.any() else True
    count = int(differs.sum())
    if count:
        worst = tuple(int(i) for i in differs.nonzero()[0])
        text = f"at {list(worst)}: expected {describe(expected[worst])}, got {describe(got[worst])} ({count} elements)"
        cause = elements.nonfinite(got, expected, differs, fills=fills)
        yield Finding("nonfinite", f"{where}{NONFINITE}", action, text, cause=cause, sort=sort)


def _overflowing(got: Tensor, expected: Tensor, exact: Tensor | None, bound: float) -> Tensor:
    """Return where an overflow hangs on the order of sums alone: float64 has a number there.

    Where plain autograd overflows, what is as near to float64 as it must be is right, and so is another overflow: inf,
    or the NaN of two that cancel. Where it does not, inf is right next to the largest number of the dtype.
    """
    if exact is None:
        return torch.zeros_like(got, dtype=torch.bool)
    shown, exact, largest = got.detach().cpu().double(), exact.detach().cpu().double(), torch.finfo(got.dtype).max
    near = (shown - exact).abs() <= bound
    spared = ~expected.isfinite().cpu() & exact.isfinite() & (near | ~shown.isfinite())
    past = shown.isinf() & expected.isfinite().cpu() & (shown.sign() == exact.sign())
    past &= exact.isfinite() & (exact.abs() + bound > largest)
    return (spared | past).to(got.device)


def _by_the_rule(  # noqa: PLR0913 (a tensor, what it is held against, and how much room it has)
    got: Tensor,
    expected: Tensor,
    reference: Reference | None,
    *,
    spread: float,
    factor: float,
    run_in: torch.dtype | None,
) -> tuple[Judgement, Tensor | None]:
    """Return what the rule says, and the gradient in float64, None where plain autograd's is that.

    A gradient in float64 of a run in a narrower dtype is computed from what was rounded to that.
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
        f"error/bound {judged.headroom:.3g}"
    )


def _summary(tensor: Tensor) -> str:
    largest = float(tensor.to_dense().abs().max()) if tensor.numel() and tensor.dtype != torch.bool else 0.0
    return f"a tensor of shape {tuple(tensor.shape)} with largest element {largest:.3g}"
