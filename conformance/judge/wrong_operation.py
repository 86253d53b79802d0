"""Finds the wrong and the imprecise operations of a device, by comparing each one alone with the CPU's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradconform.devices.copies import VALUES, WRITTEN, WrongCopyError
from gradconform.devices.device import Device, denormals_as, device_of
from gradconform.devices.probe import OPERATIONS
from gradconform.devices.tensor_facts import facts_withheld
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.driver import drive
from gradconform.drive.oracle import replaced
from gradconform.drive.reference64 import References
from gradconform.drive.watches import on_cpu
from gradconform.reference.autograd import AutogradAdapter
from gradconform.tolerance import Room
from gradconform.torch_releases.composed_operations import is_composed, is_only_composed, run_composed
from gradconform.torch_releases.dispatch import DispatchMode
from gradconform.trees import map_leaves, tensors

from .accumulated_rounding import Call, Calls, computes, errors_in, relative_errors
from .device_precision import MOST_EPS_OF_SCALARS, Imprecise, judged_with, most_eps, room_in
from .kernel_call import REFUSALS
from .kernel_results import Difference, agrees, difference, run_kernel

_WIDER = {
    torch.float32: torch.float64, torch.bfloat16: torch.float32, torch.float16: torch.float32,
    torch.complex64: torch.complex128,
}  # fmt: skip

#: The operations that copy. Torch composes them of the device's own ``_copy_from``, which the CPU lacks.
_COPIES = frozenset({"aten::copy_", "aten::clone", "aten::_to_copy"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """The operations of a trial on a device, each compared alone.

    ``wrong`` is the first wrong operation. If none is wrong, it names those that the CPU lacks, as a hint, or is None.
    ``also_wrong`` has the others: each is compared with the device's own arguments, so one hides no other.
    ``imprecise`` has the operations that err by more than IEEE rounding and are not wrong, the worst call of each.
    ``miscopied`` names those whose values the device's copies change, so that they cannot be judged.
    ``names`` has one name for each call. ``errors`` has the result errors of each call that is not wrong, and
    ``roughest`` the largest of these relative to its result, by dtype.
    """

    wrong: Cause | None
    also_wrong: tuple[Cause, ...]
    imprecise: tuple[Imprecise, ...]
    miscopied: frozenset[str]
    names: tuple[str, ...]
    errors: Mapping[Call, tuple[float, ...]]
    roughest: Mapping[torch.dtype, float]


def operations_of(references: References, *, twice: bool = False) -> Operations:
    """Return the comparison of each operation with the CPU's, from one more run of plain autograd on the device.

    ``twice`` reports only an operation that is wrong again on copies of its arguments. Without other evidence against
    the device, the operation may run late, so that its tensors hold no values yet. If the device's operations cannot be
    seen, none is compared: ``names`` has those that the CPU calls.
    """
    materials = references.materials
    if OPERATIONS in facts_withheld(materials.device.type):
        materials = replaced(materials, torch.device("cpu"))
    compared = Compared(device_of(materials.device), twice=twice)
    drive(AutogradAdapter(), materials, loss_scale=references.loss_scale, log=compared)
    wrong = compared.found
    if wrong is None and compared.alone:
        wrong = Cause(Mistake.OPERATION_OF_ITS_OWN, names=tuple(dict.fromkeys(compared.alone)))
    return Operations(
        wrong=wrong,
        also_wrong=tuple(cause for cause, _ in compared.wrong.values())[1:],
        imprecise=tuple(compared.imprecise.values()),
        miscopied=frozenset(compared.miscopied),
        names=tuple(compared.names),
        errors=compared.errors,
        roughest=compared.roughest,
    )


class Compared(DispatchMode):
    """Runs each operation on the device, and again on the CPU with the same arguments.

    ``wrong`` has each wrong operation by name, with its first difference, and ``found`` the first one. With ``ties``,
    equal elements make an operation's whole numbers arbitrary: these are indices of selected elements, and are not
    compared. ``miscopied`` has the operations that cannot be judged because the device copies their values wrong.

    At the ``edges`` of kernels, an error of eps of the smallest argument is allowed, for numbers up to 1: a smaller
    result is the remainder of terms that cancel, as in the tail of an error function.
    """

    def __init__(self, device: Device, *, twice: bool, edges: bool = False, ties: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self.device, self.twice, self.edges, self.ties = device, twice, edges, ties
        self.found: Cause | None = None
        self.wrong: dict[str, tuple[Cause, Difference]] = {}
        self.miscopied: set[str] = set()
        #: Whether the device has its own kernel for an operation.
        self.is_certain = False
        self.imprecise: dict[tuple[str, str], Imprecise] = {}
        self.names: list[str] = []
        self.errors: dict[Call, tuple[float, ...]] = {}
        self.roughest: dict[torch.dtype, float] = {}
        self._calls = Calls()
        #: Errors for operations that the CPU does not support.
        self.alone: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and return its result; store it if it is wrong."""
        del types
        kwargs = kwargs or {}
        name = func.name().partition(".")[0]
        self.names.append(name)
        if name in self.wrong or not computes(func):
            return func(*args, **kwargs)
        given = self._read((args, kwargs))
        found = func(*args, **kwargs)
        if given is None or (self.device.reads_views == "nothing" and self._read(found) is None):
            self.miscopied.add(name)
            return found
        with denormals_as(self.device.flushes_denormals):
            here = run_kernel(func, given)
        if here is None:
            self.alone.append(name)
            return found
        self._weigh(func, found, here)
        counted, here, got = (_reals_of(func), _real(here), _real(found)) if self.ties else (func, here, found)
        room = room_in(self.device.numerics, [name])  # the operation's own, not that of the whole trial
        if self.edges:
            room = replace(room, absolute=max(room.absolute, _cancelled(given)))
        with judged_with(Room(absolute=room.absolute)):
            seen = difference(counted, given, here, got)
            if seen is not None and self.twice:
                again = run_kernel(counted, map_leaves(_on_device_of(args), given))
                seen = difference(counted, given, here, again)
        if seen is None:
            return found
        with judged_with(room):
            explained = bool(room.relative) and difference(counted, given, here, got) is None
        if explained or self._shrinks(counted, args, given, seen) or _rounds_scalars(counted, given, got, seen):
            self._note(name, seen)
        elif VALUES in self.device.wrong_copies and not self._survives_copies(counted, args, given, here, got):
            self.miscopied.add(name)
        else:
            self._accuse(func, args, given, seen)
        return found

    def _accuse(self, func: Any, args: Any, given: Any, seen: Difference) -> None:
        """Store a wrong operation; the pre-flight reports a copy, so at the edges of kernels it is not judged."""
        name = func.name().partition(".")[0]
        elements = max((tensor.numel() for tensor in tensors(given[0])), default=None)
        names = (name, _shapes(given[0]), seen.compared_with("the CPU"))
        inside = self._inside(func, args, given)
        cause = inside or Cause(Mistake.OPERATION_WRONG, names=names, elements=elements)
        if self.edges and cause.names[0] in _COPIES and self.device.wrong_copies & WRITTEN:
            self.miscopied.add(name)
            return
        self.wrong[name] = cause, seen
        if self.found is None:
            self.found = cause
            self.is_certain = inside is not None or name in _COPIES or not is_only_composed(func, self.device.type)

    def _inside(self, func: Any, args: Any, given: Any) -> Cause | None:
        """Return the wrong operation among those that ``func`` is composed of on the device, or None.

        A composed operation keeps the outer name, which the user knows, if nothing inside it is wrong.
        """
        if not is_composed(func, self.device.type):
            return None
        inner = Compared(self.device, twice=self.twice)
        there, options = map_leaves(_on_device_of(args), given)
        try:
            with torch.no_grad(), inner:
                run_composed(func, self.device.type, *there, **options)
        except REFUSALS:
            return None
        return inner.found if inner.is_certain else None

    def _weigh(self, func: Any, found: Any, here: Any) -> None:
        """Store the errors of a call's results."""
        wanted = tensors(here)
        off = errors_in(list(map(on_cpu, tensors(found))), wanted)
        self.errors[self._calls.next(func, found)] = off
        for dtype, error in relative_errors(off, wanted):
            self.roughest[dtype] = max(error, self.roughest.get(dtype, 0.0))

    def _read(self, values: Any) -> Any:
        """Return copies on the CPU; None if the device's copies are wrong."""
        try:
            return map_leaves(_moved, values)
        except WrongCopyError:
            return None

    def _survives_copies(self, func: Any, args: Any, given: Any, here: Any, found: Any) -> bool:
        """Return whether a difference remains for arguments as they were read, and copies keep the CPU's results."""
        again = run_kernel(func, map_leaves(_on_device_of(args), given))
        if again is None or difference(func, given, here, again) is None:
            return False
        there = [one.contiguous().to(got.device) for one, got in zip(tensors(here), tensors(found), strict=False)]
        return all(map(agrees, map(on_cpu, there), tensors(here)))

    def _shrinks(self, func: Any, args: Any, given: Any, seen: Difference) -> bool:
        """Return whether an error is a few eps, and absent in a wider dtype."""
        if seen.dtype is None or not seen.eps <= most_eps(seen.dtype):
            return False
        wide = map_leaves(_wider, given)
        got, wanted = (run_kernel(func, one) for one in (map_leaves(_on_device_of(args), wide), wide))
        return got is not None and wanted is not None and difference(func, wide, wanted, got) is None

    def _note(self, name: str, seen: Difference) -> None:
        dtype = str(seen.dtype).removeprefix("torch.")
        before = self.imprecise.get((name, dtype))
        if before is None or before.eps < seen.eps:
            self.imprecise[name, dtype] = Imprecise(operation=name, dtype=dtype, eps=seen.eps)


def _cancelled(given: Any) -> float:
    """Return eps of float32 of the smallest argument, of numbers up to 1."""
    sizes = [float(one.abs().nan_to_num(0.0, 0.0).max()) for one in tensors(given) if _counts(one)]
    return torch.finfo(torch.float32).eps * min([1.0, *sizes])


def _counts(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0 and tensor.layout is torch.strided


def _real(results: Any) -> list[Tensor]:
    """Return the results that are no whole numbers."""
    return [one for one in tensors(results) if one.is_floating_point() or one.is_complex()]


def _reals_of(func: Callable[..., Any]) -> Callable[..., list[Tensor]]:
    """Return an operation as a function that returns only the results that are no whole numbers."""
    return lambda *args, **kwargs: _real(func(*args, **kwargs))


def _moved(value: Any) -> Any:
    """Return a copy on the CPU: an operation may write into its arguments."""
    if isinstance(value, Tensor):
        return on_cpu(value).clone()
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _on_device_of(args: Any) -> Callable[[Any], Any]:
    """Return a function that moves a tensor to the device of the first of ``args`` that is not on the CPU."""
    device = next((one.device for one in tensors(args) if one.device.type != "cpu"), torch.device("cpu"))
    return lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf


def _wider(value: Any) -> Any:
    """Return a tensor in the next wider dtype; anything else as it is."""
    if not isinstance(value, Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    return value.to(_WIDER.get(value.dtype, value.dtype))


def _rounds_scalars(func: Callable[..., Any], given: Any, found: Any, seen: Difference) -> bool:
    """Return whether a float64 result equals the CPU's for scalar arguments, such as an epsilon, rounded to float32."""
    if seen.dtype is not torch.float64 or not seen.eps <= MOST_EPS_OF_SCALARS:
        return False
    rounded = map_leaves(_scalar_in_float32, given)
    here = run_kernel(func, rounded)
    return here is not None and difference(func, rounded, here, found) is None


def _scalar_in_float32(value: Any) -> Any:
    return torch.tensor(value, dtype=torch.float32).item() if isinstance(value, float) else value


def _shapes(args: Any) -> str:
    shown = [f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for t in tensors(args)]
    return ", ".join(shown) or "no tensors"
