"""The right gradient with wrong elements: transposed, conjugated, rounded, clipped, some wrong, some zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradconform.diagnosis.question import ENOUGH, Question

#: By how many bits a wrong element has to stand out from the others to be called the only one.
_CLEAR = 4.0


def reshaped(question: Question, got: Tensor) -> str | None:
    """Name a change of all elements: a transpose, a conjugate, a rounding through another dtype, a clipping."""
    right = question.right
    if right.dim() == 2 and right.shape[0] == right.shape[1] and question.explained_by(right.T):  # noqa: PLR2004 (a matrix)
        return "transposed"
    if right.is_complex() and question.explained_by(right.conj().resolve_conj()):
        return "conjugated"
    return _rounded(question, got) or _clipped(question)


def some(question: Question) -> str | None:
    """Say which elements are wrong, where they are few or all zero."""
    errors = (question.got - question.right).abs()
    wrong = errors > question.allowed
    count, size = int(wrong.sum()), question.got.numel()
    if count == 1:
        rest = max(float(errors[~wrong].max()) if size > 1 else 0.0, question.eps * question.scale)
        clear = math.log2(question.error / rest)
        no_chance = clear >= _CLEAR and (size - 1) * clear >= ENOUGH
        return f"one element of {size} is wrong" if no_chance else None
    if 1 < count < size and bool((question.got[wrong] == 0).all()):
        return f"{count} of {size} elements are zero"
    return None


def _rounded(question: Question, got: Tensor) -> str | None:
    """Name the narrower dtype whose values are all that ``got`` holds, where they are near the right ones."""
    if got.is_complex() or got.layout != torch.strided:
        return None
    eps = torch.finfo(got.dtype).eps
    for narrow in (torch.bfloat16, torch.float16, torch.float32):
        coarse = torch.finfo(narrow).eps
        if coarse > eps and torch.equal(got.to(narrow).to(got.dtype), got):
            near = question.error <= 2.0 * coarse * question.scale
            return f"rounded to {str(narrow).removeprefix('torch.')}" if near else None
    return None


def _clipped(question: Question) -> str | None:
    """Name a limit at which two or more elements stand that should be beyond it."""
    got, right = question.got, question.right
    if got.is_complex():
        return None
    limit = float(got.abs().max())
    cut = torch.clamp(right, -limit, limit)
    count = int((right.abs() > limit).sum())
    return f"clipped at {limit:.3g}" if limit and count > 1 and question.explained_by(cut, fitted=1) else None
