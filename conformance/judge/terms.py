"""The size of the terms that an operation adds up: what is left after terms cancel is judged by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradconform.drive.reference64 import widen
from gradconform.tolerance import Partials
from gradconform.trees import map_leaves, tensors

#: How far a sum of an operation that is linear may be from what linearity says, in eps of float64 and of its size.
_LINEAR = 1e4


def terms_of(func: Callable[..., Any], given: Any, at: int) -> Partials:
    """Return the sizes of the sums of absolute terms in result ``at`` of an operation; none for one that is no sum.

    ``given`` are its arguments, as ``(args, kwargs)`` on the CPU. The operation is run in float64 on their absolute
    values. It counts as a sum of products if it is affine in each of its tensors there: a matrix product, a convolution
    and their backwards are, an exponential is not.
    """
    sizes = map_leaves(_absolute, given)
    whole = _result(func, sizes, at)
    numbers = [index for index, leaf in enumerate(tensors(sizes)) if leaf.is_floating_point()]
    if whole is None or not numbers or not all(_affine(func, sizes, at, whole, number) for number in numbers):
        return Partials()
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
    """Return a result in float64; None where the operation cannot be run so, or its result is no finite number."""
    args, kwargs = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, sizes)
    try:
        found = widen(tensors(func(*args, **kwargs))[at])
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
        return None
    return found if isinstance(found, Tensor) and bool(torch.isfinite(found.abs()).all()) else None
