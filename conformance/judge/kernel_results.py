"""Finds differences beyond rounding between two results of one kernel that ran with the same values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradconform.drive.reference64 import widen
from gradconform.drive.watches import on_cpu
from gradconform.tolerance import FAR, Partials, describe, judge
from gradconform.torch_releases.unwritten_memory import unwritten_is_nan
from gradconform.trees import map_leaves, tensors

from .kernel_call import REFUSALS
from .term_sizes import terms_of
from .values import same_bits

#: The largest difference in eps of the largest element between float64 and the CPU's own dtype. A larger one means that
#: the last bit decides a branch, so the operation cannot be judged.
_NEAR = 1e4


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two results: two elements as text (or two forms), and the index.

    For numbers, ``error`` is the largest absolute difference, in ``dtype`` and as ``eps`` of the scale, and ``bound``
    is the largest allowed error.
    """

    got: str
    wanted: str
    at: tuple[int, ...] | None = None
    error: float | None = None
    bound: float | None = None
    dtype: torch.dtype | None = None
    eps: float = math.inf

    @property
    def ratio(self) -> float:
        """The error over the bound; infinite if nothing is allowed."""
        return math.inf if self.error is None or not self.bound else self.error / self.bound

    def compared_with(self, other: str) -> str:
        """Return the two elements in words; ``other`` names the source of the second."""
        where = "" if self.at is None else f"at {list(self.at)} "
        return f"{where}it gave {self.got}, {other} {self.wanted}"


def difference(func: Callable[..., Any], given: Any, here: Any, found: Any) -> Difference | None:
    """Return the difference between a kernel's result ``found`` and the expected one ``here``, or None.

    ``given`` are its arguments as ``(args, kwargs)`` on the CPU. Rounding does not count: the bound comes from the same
    kernel in float64, and from the size of the terms that it adds up. Memory that the kernel leaves unwritten is
    ignored.
    """
    if all(map(agrees, map(on_cpu, tensors(found)), tensors(here))):
        return None
    wide = run_kernel(func, map_leaves(widen, given))
    exact = tensors(wide) if wide is not None else [None] * len(tensors(here))
    for at, (got, wanted, reference) in enumerate(zip(map(on_cpu, tensors(found)), tensors(here), exact, strict=False)):
        seen = _of_tensor(got, wanted, reference, partial(terms_of, func, given, at))
        if seen is not None and (unwritten := _unwritten(func, given, at)) is not None:
            seen = _of_tensor(_without(got, unwritten), _without(wanted, unwritten), None, Partials)
        if seen is not None:
            return seen
    return None


def agrees(got: Tensor, wanted: Tensor) -> bool:
    """Return whether two results are too near for any reference to separate them: the quick and usual case."""
    if same_bits(got, wanted):
        return True
    if got.shape != wanted.shape or got.dtype != wanted.dtype or got.layout is not wanted.layout:
        return False
    if got.layout is not torch.strided or not (got.is_floating_point() or got.is_complex()):
        return False
    if not torch.equal(torch.isfinite(got.abs()), torch.isfinite(wanted.abs())):
        return False
    return judge(got, wanted, None, Partials(), factor=FAR).passed


def _unwritten(func: Callable[..., Any], given: Any, at: int) -> Tensor | None:
    """Return the elements that a CPU kernel leaves unwritten in a result, if any: torch fills them with NaN."""
    with unwritten_is_nan():
        filled = tensors(run_kernel(func, given))[at]
    unwritten = torch.isnan(filled)
    return unwritten if bool(unwritten.any()) else None


def _without(tensor: Tensor, where: Tensor) -> Tensor:
    """Return a tensor with zeros ``where`` elements are ignored."""
    return tensor.masked_fill(where, 0) if tensor.shape == where.shape else tensor


def run_kernel(func: Callable[..., Any], given: Any) -> Any:
    """Return a kernel's result for copies of its arguments; None if it raises."""
    args, kwargs = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, given)
    try:
        return func(*args, **kwargs)
    except REFUSALS:
        return None


def _of_tensor(
    got: Tensor, wanted: Tensor, reference: Tensor | None, terms: Callable[[], Partials]
) -> Difference | None:
    if same_bits(got, wanted):
        return None
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return Difference(_form(got), _form(wanted))
    got, wanted = _dense(got), _dense(wanted)
    if not (got.is_floating_point() or got.is_complex()):
        differ = (got != wanted).nonzero()
        at = tuple(int(index) for index in differ[0]) if len(differ) else None
        return None if at is None else _at(got, wanted, at)
    fits = isinstance(reference, Tensor) and reference.shape == wanted.shape
    wide = _near(_dense(widen(reference)), wanted) if fits else None
    judged = judge(got, wanted, wide, Partials(), factor=FAR, terms=terms)
    if not torch.equal(torch.isfinite(got.abs()), torch.isfinite(wanted.abs())):
        return _at(got, wanted, _first_unlike(got, wanted))
    real = got.dtype.to_real() if got.is_complex() else got.dtype
    if judged.passed:
        return None
    worst = _at(got, wanted, judged.worst)
    return replace(worst, error=judged.error, bound=judged.bound, dtype=real, eps=judged.in_eps)


def _at(got: Tensor, wanted: Tensor, at: tuple[int, ...]) -> Difference:
    return Difference(describe(got[at], wanted[at]), describe(wanted[at], got[at]), at)


def _first_unlike(got: Tensor, wanted: Tensor) -> tuple[int, ...]:
    """Return the index of the first element that is finite in one tensor only."""
    unlike = torch.isfinite(got.abs()) != torch.isfinite(wanted.abs())
    return tuple(int(index) for index in unlike.nonzero()[0])


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _dense(tensor: Tensor) -> Tensor:
    """Return a sparse tensor as a dense one, so that the order of its entries does not count."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _near(reference: Tensor, wanted: Tensor) -> Tensor | None:
    """Return ``reference`` if it is close to ``wanted``."""
    difference, size = ((one[torch.isfinite(one)]) for one in ((reference - wanted).abs(), reference.abs()))
    if not (difference.numel() and size.numel()):
        return reference
    return reference if difference.max() <= _NEAR * torch.finfo(wanted.dtype).eps * size.max() else None
