"""The right gradient with wrong elements: transposed, rounded, clipped, some wrong, some zero, some NaN or inf."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .cause import Cause, Mistake
from .wrong import ENOUGH, WrongTensor, largest, rounding

#: By how many bits a wrong element has to stand out from the others to be called the only one.
_CLEAR = 4.0


def reshaped(wrong: WrongTensor, got: Tensor) -> Cause | None:
    """Name a change of all elements: a transpose, a conjugate, a rounding through another dtype, a clipping."""
    right = wrong.right
    if right.dim() == 2 and right.shape[0] == right.shape[1] and wrong.explained_by(right.T):  # noqa: PLR2004 (a matrix)
        return Cause(Mistake.TRANSPOSED)
    if right.is_complex() and wrong.explained_by(right.conj().resolve_conj()):
        return Cause(Mistake.CONJUGATED)
    return _rounded(wrong, got) or _clipped(wrong)


def some(wrong: WrongTensor) -> Cause | None:
    """Say which elements are wrong, where they are few or all zero."""
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
    """Name the narrower dtype whose values are all that ``got`` holds, where they are near the right ones."""
    if got.is_complex() or got.layout != torch.strided:
        return None
    eps = torch.finfo(got.dtype).eps
    for narrow in (torch.bfloat16, torch.float16, torch.float32):
        coarse = torch.finfo(narrow).eps
        if coarse > eps and torch.equal(got.to(narrow).to(got.dtype), got):
            near = wrong.error <= 2.0 * coarse * wrong.scale
            return Cause(Mistake.ROUNDED, names=(str(narrow).removeprefix("torch."),)) if near else None
    return None


def _clipped(wrong: WrongTensor) -> Cause | None:
    """Name a limit at which two or more elements stand that should be beyond it."""
    got, right = wrong.got, wrong.right
    if got.is_complex():
        return None
    limit = float(got.abs().max())
    cut = torch.clamp(right, -limit, limit)
    count = int((right.abs() > limit).sum())
    clipped = limit and count > 1 and wrong.explained_by(cut, fitted=1)
    return Cause(Mistake.CLIPPED, factors=(limit,)) if clipped else None


def nonfinite(got: Tensor, expected: Tensor, differs: Tensor) -> Cause | None:
    """Return what became of NaN and inf where they differ, or None where it is not one thing."""
    one, other = got[differs], expected[differs]
    if bool((torch.isfinite(other) & torch.isnan(one)).all()):
        return Cause(Mistake.NAN_SPREAD)
    if not _alike_elsewhere(got[~differs], expected[~differs]):
        return None  # a number may stand for NaN because what brings the NaN is missing
    if bool((torch.isnan(other) & torch.isfinite(one)).all()):
        return Cause(Mistake.NAN_REPLACED)
    if bool((torch.isinf(other) & torch.isfinite(one)).all()):
        return Cause(Mistake.INF_CLIPPED)
    return None


def _alike_elsewhere(got: Tensor, expected: Tensor) -> bool:
    finite = torch.isfinite(expected)
    one, other = got[finite], expected[finite]
    return largest(one - other) <= 2.0 * rounding(torch.finfo(got.dtype).eps, largest(other))
