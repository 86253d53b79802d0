"""Which operation of a device is wrong: every one that plain autograd runs is held against the CPU's, by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.driver import drive
from gradconform.drive.reference64 import References, widen
from gradconform.drive.watches import on_cpu
from gradconform.reference.autograd import AutogradAdapter
from gradconform.tolerance import FAR, Partials, describe, judge
from gradconform.torch_releases.dispatch import DispatchMode
from gradconform.trees import map_leaves, tensors

from .values import same_bits

#: What is different each time, or never written.
_NOT_COMPARED = ("empty", "new_empty", "set_", "resize_")


def first_wrong_operation(references: References) -> Cause | None:
    """Run plain autograd on the device once more and return the first operation that is wrong there, if any is."""
    compared = _Compared()
    drive(AutogradAdapter(), references.materials, loss_scale=references.loss_scale, log=compared)
    return compared.found


class _Compared(DispatchMode):
    """Runs each operation on the device, and again on the CPU with the same arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self.found: Cause | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation; keep the first that is wrong."""
        del types
        kwargs = kwargs or {}
        if self.found is not None or not _comparable(func):
            return func(*args, **kwargs)
        given = map_leaves(_moved, args), map_leaves(_moved, kwargs)
        found = func(*args, **kwargs)
        seen = _difference(func, given, found)
        if seen is not None:
            names = (func.name().partition(".")[0], _shapes(given[0]), seen)
            self.found = Cause(Mistake.OPERATION_WRONG, names=names)
        return found


def _comparable(func: Any) -> bool:
    name = func.name().removeprefix("aten::")
    return not (func.is_view or name.startswith(_NOT_COMPARED) or torch.Tag.nondeterministic_seeded in func.tags)


def _moved(value: Any) -> Any:
    """Return a copy on the CPU: an operation may write into what it is given."""
    if isinstance(value, Tensor):
        return on_cpu(value).clone()
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _difference(func: Callable[..., Any], given: tuple[Any, dict[str, Any]], found: Any) -> str | None:
    """Return how what was ``found`` differs from what the CPU gives, or None."""
    wide = _run(func, map_leaves(widen, given))
    here = _run(func, given)
    if here is None:  # an operation of this device alone: nothing can be said
        return None
    exact = tensors(wide) if wide is not None else [None] * len(tensors(here))
    for got, wanted, reference in zip(map(on_cpu, tensors(found)), tensors(here), exact, strict=False):
        seen = _of_tensor(got, wanted, reference)
        if seen is not None:
            return seen
    return None


def _run(func: Callable[..., Any], given: Any) -> Any:
    args, kwargs = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, given)
    try:
        return func(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
        return None


def _of_tensor(got: Tensor, wanted: Tensor, reference: Tensor | None) -> str | None:
    if same_bits(got, wanted):
        return None
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"expected {wanted.dtype} {tuple(wanted.shape)}, got {got.dtype} {tuple(got.shape)}"
    if not (got.is_floating_point() or got.is_complex()) or got.layout != torch.strided:
        return None if bool((got.to_dense() == wanted.to_dense()).all()) else "values differ"
    fits = isinstance(reference, Tensor) and reference.shape == wanted.shape
    judged = judge(got, wanted, widen(reference) if fits else None, Partials(), factor=FAR)
    if judged.passed and torch.equal(torch.isfinite(got.abs()), torch.isfinite(wanted.abs())):
        return None
    at = judged.worst
    return f"at {list(at)} it gave {describe(got[at])}, the CPU {describe(wanted[at])}"


def _shapes(args: Any) -> str:
    shown = [f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in tensors(args)]
    return ", ".join(shown) or "no tensors"
