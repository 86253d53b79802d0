"""Computes the size of the terms that an operation adds up, by which the remainder of cancelling terms is judged.

For an operation that is not a sum of products, the size is the change of its result with its arguments, relative to
theirs. No kernel can be more accurate than the rounding of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradconform.drive.reference64 import widen
from gradconform.tolerance import Partials
from gradconform.trees import map_leaves, tensors

#: How far a sum of a linear operation may be from the linear prediction, in eps of float64 and of its size.
_LINEAR = 1e4


#: The relative change of the arguments in a float64 test of an operation, and the number of sign patterns.
_STEP = 2.0**-30
_PATTERNS = 4
#: How far a change by two steps may be from twice that by one, as a share of it; a jump is further.
_SMOOTH = 0.1


def terms_of(func: Callable[..., Any], given: Any, at: int) -> Partials:
    """Return the sizes of the terms in result ``at`` of an operation; empty if they cannot be computed.

    ``given`` are its arguments, as ``(args, kwargs)`` on the CPU. For a sum of products the size is the sum of its
    absolute terms, for any other operation the change with its arguments, in proportion.
    """
    return _absolute_terms(func, given, at) or _change(func, given, at)


def _change(func: Callable[..., Any], given: Any, at: int) -> Partials:
    """Return how much a result changes with its arguments, in proportion; empty if it jumps.

    That is the largest change over some patterns of signs, divided by the relative change of the arguments.
    """
    wide = map_leaves(lambda leaf: widen(leaf) if isinstance(leaf, Tensor) else leaf, given)
    here = _result(func, wide, at)
    largest = Partials()
    for seed in range(_PATTERNS if here is not None else 0):
        once, twice = (_result(func, _moved(wide, seed, step), at) for step in (_STEP, 2 * _STEP))
        if here is None or once is None or twice is None or not once.shape == twice.shape == here.shape:
            return Partials()
        first, second = (once - here).abs(), (twice - here).abs()
        if not first.numel() or float((second - 2 * first).abs().max()) > _SMOOTH * float(second.max()):
            return Partials()
        largest = largest.with_(first / _STEP)
    return largest


def _moved(wide: Any, seed: int, step: float) -> Any:
    """Return the arguments, each number changed by ``step`` of itself, up or down."""
    generator = torch.Generator().manual_seed(seed)

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided:
            return leaf
        if not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        signs = torch.randint(0, 2, leaf.shape, generator=generator, dtype=torch.float64) * 2 - 1
        return leaf * (1 + step * signs)

    return map_leaves(one, wide)


def _absolute_terms(func: Callable[..., Any], given: Any, at: int) -> Partials | None:
    """Return the sizes of the sums of absolute terms in a result; None for an operation that is not a sum of products.

    The operation is run in float64 on the absolute values of its arguments. It counts as a sum of products if it is
    affine in each of its tensors there. A matrix product, a convolution and their backwards are affine, an exponential
    is not.
    """
    sizes = map_leaves(_absolute, given)
    whole = _result(func, sizes, at)
    numbers = [index for index, leaf in enumerate(tensors(sizes)) if leaf.is_floating_point()]
    if whole is None or not numbers or not all(_affine(func, sizes, at, whole, number) for number in numbers):
        return None
    return Partials().with_(whole)


def _absolute(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    return (leaf.to_dense() if leaf.layout is not torch.strided else leaf).abs().double()


def _affine(func: Callable[..., Any], sizes: Any, at: int, whole: Tensor, number: int) -> bool:
    """Return whether a result is affine in one tensor: f(2x) - f(x) is f(x) - f(0), and both are 0 or more."""
    none, twice = (_result(func, _scaled(sizes, number, by), at) for by in (0.0, 2.0))
    if none is None or twice is None or not none.shape == twice.shape == whole.shape:
        return False
    first, second = whole - none, twice - whole
    room = _LINEAR * torch.finfo(torch.float64).eps * (whole.abs() + twice.abs())
    return bool(((first - second).abs() <= room).all() and (first >= -room).all() and (none >= -room).all())


def _scaled(sizes: Any, number: int, by: float) -> Any:
    """Return the arguments with one tensor multiplied."""
    seen = -1

    def one(leaf: Any) -> Any:
        nonlocal seen
        if not isinstance(leaf, Tensor):
            return leaf
        seen += 1
        return leaf * by if seen == number else leaf

    return map_leaves(one, sizes)


def _result(func: Callable[..., Any], sizes: Any, at: int) -> Tensor | None:
    """Return a result in float64; None if the operation cannot run in it, or its result is not finite."""
    args, kwargs = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, sizes)
    try:
        found = widen(tensors(func(*args, **kwargs))[at])
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
        return None
    return found if isinstance(found, Tensor) and bool(torch.isfinite(found.abs()).all()) else None
