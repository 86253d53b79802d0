"""Finds wrong elements in a right gradient: transposed, rounded, clipped, cut off, some wrong, zero, NaN or inf."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

import torch
from torch import Tensor

from .cause import Cause, Mistake
from .parts import Part, own_part
from .wrong_tensor import ENOUGH, WrongTensor, largest, rounding

#: By how many bits a wrong element must exceed the others to be called the only one.
_CLEAR = 4.0

#: The tested block sizes, as powers of two, if all elements after some index are missing.
_BLOCKS = range(15, 3, -1)

#: The largest number of bits that is reported for a rounding, and the number of different values that rules out chance.
_FEW_BITS, _MANY = 6, 16

#: Eight-bit floats, to whose range a tensor is scaled before it is rounded.
_SCALED = (torch.float8_e4m3fn, torch.float8_e5m2)


def reshaped(wrong: WrongTensor, got: Tensor) -> Cause | None:
    """Return a change of all elements: a transpose, a conjugate, a rounding through another dtype, a clipping."""
    right = wrong.right
    if right.dim() == 2 and right.shape[0] == right.shape[1] and wrong.explained_by(right.T):  # noqa: PLR2004 (a matrix)
        return Cause(Mistake.TRANSPOSED)
    for one, other in combinations(range(right.dim()), 2) if right.dim() > 2 else ():  # noqa: PLR2004 (no matrix)
        if right.shape[one] == right.shape[other] and wrong.explained_by(right.transpose(one, other)):
            return Cause(Mistake.DIMENSIONS_SWAPPED, slots=(one, other))
    if right.is_complex() and wrong.explained_by(right.conj().resolve_conj()):
        return Cause(Mistake.CONJUGATED)
    whole = not right.is_complex() and bool(wrong.got.any()) and torch.equal(wrong.got, wrong.got.round())
    if whole and wrong.explained_by(right.trunc()):
        return Cause(Mistake.WHOLE_NUMBERS)
    return _rounded(wrong, got) or clipped(wrong)


def in_part(wrong: WrongTensor, parts: Sequence[Part]) -> Cause | None:
    """Return the cause that only the real part, or the first row, of the action's own part was used."""
    own = own_part(wrong, parts)
    if own is None:
        return None
    if own.is_complex() and wrong.explained_by(wrong.right - own + own.real):
        return Cause(Mistake.IMAGINARY_LOST)
    if own.dim() and own.shape[0] > 1 and wrong.explained_by(wrong.right - own + own[:1].expand_as(own)):
        return Cause(Mistake.FIRST_ROW_REPEATED)
    return None


def across(wrong: WrongTensor, parts: Sequence[Part]) -> Cause | None:
    """Return the cause that the action's own part was written or read by rows, though its memory has another order."""
    own = own_part(wrong, parts)
    if own is None:
        return None
    for kind, memory, moved in _orders(own):
        if wrong.explained_by(wrong.right - own + moved):
            return Cause(kind, names=(memory,))
    return None


def _orders(own: Tensor) -> Iterator[tuple[Mistake, str, Tensor]]:
    """Yield the elements in the orders that they get if only one memory has columns, or channels, first."""
    if own.dim() == 2:  # noqa: PLR2004 (a matrix)
        rows, columns = own.shape
        yield Mistake.WRITTEN_ACROSS, "that is transposed", own.reshape(columns, rows).T
        yield Mistake.READ_ACROSS, "that is transposed", own.T.reshape(own.shape)
    elif own.dim() == 4:  # noqa: PLR2004 (images)
        count, channels, height, width = own.shape
        written = own.reshape(count, height, width, channels).permute(0, 3, 1, 2)
        yield Mistake.WRITTEN_ACROSS, "whose channels lie last", written
        yield Mistake.READ_ACROSS, "whose channels lie last", own.permute(0, 2, 3, 1).reshape(own.shape)


def cut_off(wrong: WrongTensor, parts: Sequence[Part]) -> Cause | None:
    """Return the cause that all elements after a whole number of blocks got nothing of the action's own part."""
    own, size = own_part(wrong, parts), wrong.got.numel()
    off = (wrong.got - wrong.right).abs().reshape(-1) > wrong.allowed
    if own is None or not bool(off.any()):
        return None
    first = int(off.nonzero()[0])
    for power in _BLOCKS:
        kept = first >> power << power
        tail = own.reshape(-1).clone()
        tail[:kept] = 0
        if kept and wrong.explained_by(wrong.right - tail.reshape(own.shape)):
            return Cause(Mistake.CUT_OFF, counts=(size - kept, size, kept))
    return None


def flushed(wrong: WrongTensor, parts: Sequence[Part]) -> Cause | None:
    """Return the limit below which the elements of the action's own part became zero."""
    own = own_part(wrong, parts)
    if own is None or own.is_complex():
        return None
    for limit, name in _limits(wrong.eps):
        small = own.abs() < limit
        if wrong.explained_by(wrong.right - torch.where(small, own, 0.0)):
            return Cause(Mistake.FLUSHED, names=(name,))
    return None


def _limits(eps: float) -> Iterator[tuple[float, str]]:
    """Yield the limits below which numbers get lost, the smallest first."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        if torch.finfo(dtype).eps == eps:
            yield torch.finfo(dtype).smallest_normal, f"the smallest normal number of {_named(dtype)}"
    if eps < torch.finfo(torch.float32).eps:
        yield 2.0**-150, "half of the smallest number of float32"
    if eps != torch.finfo(torch.float16).eps:
        yield 2.0**-25, "half of the smallest number of float16"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def some(wrong: WrongTensor) -> Cause | None:
    """Return which elements are wrong, if they are few or all zero."""
    errors = (wrong.got - wrong.right).abs()
    off = errors > wrong.allowed
    count, size = int(off.sum()), wrong.got.numel()
    if count == 1:
        rest = max(float(errors[~off].max()) if size > 1 else 0.0, wrong.eps * wrong.scale)
        clear = math.log2(wrong.error / rest)
        no_chance = clear >= _CLEAR and (size - 1) * clear >= ENOUGH
        return Cause(Mistake.ONE_ELEMENT, counts=(size,)) if no_chance else None
    if 1 < count < size and bool((wrong.got[off] == 0).all()):
        return Cause(Mistake.ELEMENTS_ZERO, counts=(count, size))
    return None


def _rounded(wrong: WrongTensor, got: Tensor) -> Cause | None:
    """Return the narrower dtype that holds all values of ``got``, if they are near the right ones."""
    if got.is_complex() or got.layout != torch.strided or not bool(got.any()):
        return None
    few = _few_bits(wrong) or _scaled(wrong)
    eps = torch.finfo(got.dtype).eps
    for narrow in (torch.bfloat16, torch.float16, torch.float32) if few is None else ():
        coarse = torch.finfo(narrow).eps
        if coarse > eps and torch.equal(got.to(narrow).to(got.dtype), got):
            near = wrong.error <= 2.0 * coarse * wrong.scale
            return Cause(Mistake.ROUNDED, names=(_named(narrow),)) if near else None
    return few


def _few_bits(wrong: WrongTensor) -> Cause | None:
    """Return the number of bits to which all elements are rounded, if it is below that of 16-bit dtypes."""
    got, right = wrong.got, wrong.right
    if int(torch.unique(got.abs()).numel()) < _MANY:
        return None
    mantissa, _ = torch.frexp(got)
    for bits in range(1, _FEW_BITS + 1):
        shifted = torch.ldexp(mantissa, torch.tensor(bits))
        if torch.equal(shifted, shifted.round()):
            near = bool(((got - right).abs() <= 2.0 ** (1 - bits) * right.abs() + wrong.eps * wrong.scale).all())
            return Cause(Mistake.ROUNDED_TO_BITS, counts=(bits,)) if near else None
    return None


def _scaled(wrong: WrongTensor) -> Cause | None:
    """Return the eight-bit dtype through which all elements passed, scaled to its range."""
    got, most = wrong.got, largest(wrong.got)
    fine = wrong.eps <= torch.finfo(torch.float32).eps  # in a coarse dtype numbers are near by chance
    for narrow in _SCALED if most and fine and int(torch.unique(got.abs()).numel()) >= _MANY else ():
        scale = torch.finfo(narrow).max / most
        again = (got * scale).to(narrow).double() / scale
        near = wrong.error <= 2.0 * torch.finfo(narrow).eps * wrong.scale
        if near and wrong.off(again) <= _CLEAR * wrong.eps * wrong.scale < wrong.error / _CLEAR:
            return Cause(Mistake.ROUNDED, names=(_named(narrow),))
    return None


def clipped(wrong: WrongTensor) -> Cause | None:
    """Return a limit that two or more elements have although they should exceed it."""
    got, right = wrong.got, wrong.right
    if got.is_complex():
        return None
    limit = float(got.abs().max())
    cut = torch.clamp(right, -limit, limit)
    count = int((right.abs() > limit).sum())
    is_limit = limit and count > 1 and wrong.off(cut) <= 16.0 * wrong.eps * limit
    return Cause(Mistake.CLIPPED, factors=(limit,)) if is_limit and wrong.explained_by(cut, fitted=1) else None


def nonfinite(got: Tensor, expected: Tensor, differs: Tensor, *, fills: bool) -> Cause | None:
    """Return the cause of different NaN and inf, or None if there is no single one.

    ``fills``: unwritten memory holds NaN, as in deterministic mode.
    """
    if fills and bool(torch.isnan(got).all()):
        return Cause(Mistake.UNWRITTEN)
    one, other = got[differs], expected[differs]
    if bool((torch.isfinite(other) & torch.isnan(one)).all()):
        return Cause(Mistake.NAN_SPREAD)
    if not _alike_in_the_rest(got[~differs], expected[~differs]):
        return None  # a number may replace NaN because the source of the NaN is missing
    if bool((torch.isnan(other) & torch.isfinite(one)).all()):
        return Cause(Mistake.NAN_REPLACED)
    if bool((torch.isinf(other) & torch.isfinite(one)).all()):
        return Cause(Mistake.INF_CLIPPED)
    return None


def _alike_in_the_rest(got: Tensor, expected: Tensor) -> bool:
    finite = torch.isfinite(expected)
    one, other = got[finite], expected[finite]
    return largest(one - other) <= 2.0 * rounding(torch.finfo(got.dtype).eps, largest(other))
