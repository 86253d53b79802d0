"""Measures how the errors of a device's single operations, each within rounding, add up in a whole trial.

As in Monte Carlo arithmetic (Parker, Pierce and Eggert, *Monte Carlo Arithmetic*, Computing in Science & Engineering 2,
2000), the CPU runs the trial again. The result of each operation is changed by its error on the device, and by its last
bit. The last bit is needed because a device that fuses operations does not round in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gradconform.drive.driver import drive
from gradconform.drive.observation import Observation
from gradconform.reference.autograd import AutogradAdapter
from gradconform.tolerance import FAR, floor_factor
from gradconform.torch_releases.dispatch import DispatchMode
from gradconform.trees import tensors
from gradconform.trial.materials import Materials

#: An operation, the shapes and dtypes of its results, and the number of the call among equal ones.
Call = tuple[str, tuple[tuple[tuple[int, ...], torch.dtype], ...], int]

#: Runs with other signs; the largest change counts.
RUNS = 3


#: Operations whose results are never written, or differ each time.
_NOT_COMPUTED = ("empty", "new_empty", "set_", "resize_")


def computes(func: Any) -> bool:
    """Return whether an operation gives values that are the same each time.

    A view gives no values of its own; neither does an operation that returns and changes no tensor.
    """
    if not (func._schema.returns or func._schema.is_mutable):  # noqa: SLF001 (torch has no other name for it)
        return False
    name = func.name().removeprefix("aten::")
    return not (func.is_view or name.startswith(_NOT_COMPUTED) or torch.Tag.nondeterministic_seeded in func.tags)


class Calls:
    """Numbers the calls of each operation, to match a call on a device with the same call on the CPU."""

    def __init__(self) -> None:
        """Create a counter that starts at the first call."""
        self._seen: Counter[Any] = Counter()

    def next(self, func: Any, found: Any) -> Call:
        """Return the call of ``func`` that gave ``found``; the in-place form counts as the same operation."""
        name = func.name().partition(".")[0].rstrip("_")
        kind = name, tuple((tuple(one.shape), one.dtype) for one in tensors(found))
        self._seen[kind] += 1
        return (*kind, self._seen[kind])


def errors_in(found: list[Tensor], here: list[Tensor]) -> tuple[float, ...]:
    """Return the largest error of each result, over the elements that are finite in both; 0 for other values."""
    return tuple(_error(got, wanted) for got, wanted in zip(found, here, strict=False))


def relative_errors(errors: tuple[float, ...], here: list[Tensor]) -> Iterator[tuple[torch.dtype, float]]:
    """Yield the dtype of each result with an error, and its error relative to its largest element.

    The remainder of cancelling terms may have a relative error of 1, so an error counts at most as much as rounding.
    """
    for error, wanted in zip(errors, here, strict=False):
        size = float(torch.nan_to_num(wanted.abs(), nan=0.0, posinf=0.0).max()) if error else 0.0
        if size:
            real = wanted.dtype.to_real() if wanted.is_complex() else wanted.dtype
            yield wanted.dtype, min(error / size, FAR * floor_factor(real) * torch.finfo(real).eps)


def _error(got: Tensor, wanted: Tensor) -> float:
    if got.shape != wanted.shape or got.dtype != wanted.dtype or not _has_errors(got) or not got.numel():
        return 0.0
    wide = torch.complex128 if got.is_complex() else torch.float64
    difference = (got.to(wide) - wanted.to(wide)).abs()
    return float(torch.where(torch.isfinite(difference), difference, 0.0).max())


def _has_errors(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and (tensor.is_floating_point() or tensor.is_complex())


def with_errors(
    materials: Materials,
    loss_scale: float,
    errors: Mapping[Call, tuple[float, ...]],
    roughest: Mapping[torch.dtype, float],
    seed: int,
) -> Observation:
    """Return plain autograd's observation with each result changed by its error, each element up or down.

    A call that the device runs as other operations has no measured error: it gets the ``roughest`` relative one of its
    dtype. ``seed`` selects the elements that are changed up.
    """
    return drive(AutogradAdapter(), materials, loss_scale=loss_scale, log=_Off(errors, roughest, seed))


class _Off(DispatchMode):
    """Changes the results of operations by their errors."""

    def __init__(
        self, errors: Mapping[Call, tuple[float, ...]], roughest: Mapping[torch.dtype, float], seed: int
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self._errors, self._roughest, self._calls = errors, roughest, Calls()
        self._random = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and return its changed result."""
        del types
        found = func(*args, **(kwargs or {}))
        if computes(func):
            results = tensors(found)
            errors = self._errors.get(self._calls.next(func, found), (None,) * len(results))
            for tensor, error in zip(results, errors, strict=False):
                if _has_errors(tensor) and tensor.numel() and 0 not in tensor.stride():
                    rough = self._roughest.get(tensor.dtype, 0.0)
                    self._change(tensor, rough * float(tensor.abs().max()) if error is None else error)
        return found

    def _change(self, tensor: Tensor, error: float) -> None:
        signs = torch.randint(0, 2, tensor.shape, generator=self._random, dtype=torch.int8) * 2 - 1
        last_bit = torch.finfo(tensor.dtype).eps * tensor.abs()
        off = torch.where(tensor != 0, last_bit + error, 0.0)  # masks consist of zeros
        tensor.data.add_((signs * off).to(tensor.dtype))
