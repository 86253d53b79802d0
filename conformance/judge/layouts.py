"""Checks whether a kernel's values depend on the memory layout of its arguments, by calling it again alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradconform.devices.copies import WrongCopyError
from gradconform.devices.device import Device, device_of
from gradconform.devices.tensor_facts import offset_of, strides_of
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.watches import on_cpu
from gradconform.fixtures.inputs import arrange
from gradconform.torch_releases.dispatch import DispatchMode
from gradconform.trees import map_leaves

from .accumulated_rounding import computes
from .device_precision import judged_with, room_in
from .finding import Finding
from .kernel_call import REFUSALS, Argument, KernelCall, kept
from .kernel_results import Difference, difference
from .oracle_result import COPIED_WRONG, WRONG_ON_CPU
from .rounding import companion, shrinks
from .values import same_bits

#: Each layout, with the numbers of dimensions in which it differs from contiguous.
LAYOUTS: dict[str, range] = {
    "offset": range(1, 99),
    "strided": range(1, 99),
    "transposed": range(2, 99),
    "reversed": range(3, 99),
    "channels_last": range(4, 5),
    "channels_last_3d": range(5, 6),
}

#: How many of a kernel's results have a meaning outside the kernel that uses them.
_DEFINED = {
    "aten::_linalg_det": 1,  # the rest are the factors of A, or of its transpose if that is contiguous
    "aten::_linalg_slogdet": 2,  # as above
    "aten::_linalg_solve_ex": 1,  # as above
}

#: How often a call is run again before it counts as a fault.
_AGAIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFault:
    """A kernel whose values change with the memory layout of an argument.

    ``argument`` names it, ``tensor`` is its dtype and shape, ``strides`` are those that differ from ``contiguous``.
    ``by_autograd`` says that autograd itself calls the kernel with them, if the inputs or output gradients have another
    layout. ``ignored`` says that the kernel reads the argument as if it were contiguous.
    """

    kernel: str
    argument: str
    tensor: str
    strides: tuple[int, ...]
    contiguous: tuple[int, ...]
    by_autograd: bool
    ignored: bool
    seen: Difference

    @property
    def finding(self) -> Finding:
        """The finding of a check."""
        mistake = Mistake.LAYOUT_IGNORED if self.ignored else Mistake.LAYOUT_DEPENDENT
        called = "autograd calls it with" if self.by_autograd else "called alone with"
        far = "" if self.seen.error is None else f"; it differs by {self.seen.error:.3g}"
        text = (
            f"depends on the layout of {self.argument}: {called} {self.tensor}, strides {self.strides} in place of "
            f"{self.contiguous}, {self.seen.compared_with('with contiguous ones')}{far}"
        )
        cause = Cause(mistake, names=(self.kernel, self.argument))
        error, bound = self.seen.error, self.seen.bound
        return Finding("mismatch", self.kernel, "", text, error, bound, self.seen.ratio, cause)


class LayoutsTried(DispatchMode):
    """Compares each dispatched kernel with the same kernel on contiguous copies of its arguments.

    With ``each``, it also calls the kernel with each argument in each of :data:`LAYOUTS`; otherwise it compares the
    kernel as autograd calls it. ``fault`` is the first kernel whose values differ. ``calls`` counts the compared calls,
    of the kernels ``tried``. ``not_tried`` names the kernels that were not compared, or not in every layout, by reason.
    ``known`` has calls that were tried, and is shared among the runs of one sample. ``failed`` is an error of this code
    itself: the operation continues meanwhile.
    """

    def __init__(self, device: Device, *, each: bool, known: set[str]) -> None:
        """Create a comparison without any calls."""
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self._device, self._each, self._known = device, each, known
        self.fault: LayoutFault | None = None
        self.calls = 0
        self.tried: set[str] = set()
        self.not_tried: dict[str, set[str]] = defaultdict(set)
        self.failed: Exception | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the kernel, compare it, and return its result."""
        del types
        call = KernelCall(func, args, kwargs or {})
        if self.fault is not None or self.failed is not None:
            return func(*args, **call.kwargs)
        why = self._why_not(call)
        alike = call.alike(strides=not self._each) if why is None else ""
        if why is not None:
            self.not_tried[why].add(call.name)
        if why is not None or alike in self._known:
            return func(*args, **call.kwargs)
        self._known.add(alike)
        given = call.replaced([_as_given(one.tensor, written=one.written) for one in call.arguments])
        returned = func(*args, **call.kwargs)
        try:
            self._compare(given, None if self._each else call.results(returned))
        except WrongCopyError:
            self.not_tried[COPIED_WRONG].add(call.name)
        except Exception as error:  # noqa: BLE001 (not the operation's error; reported after the sample)
            self.failed = error
        return returned

    def _why_not(self, call: KernelCall) -> str | None:
        """Return why a kernel is not called again, None if it is."""
        if not computes(call.func):
            return "a view, random, or of memory alone"
        if any(one.name == "storage_offset" for one in call.func._schema.arguments):  # noqa: SLF001 (as in kernel_call)
            return "its arguments name a place in memory"
        if not any(_has_layouts(one.tensor) for one in call.arguments):
            return "no tensor with two elements or more"
        if self._each and call.name.startswith("aten::_"):
            return "private: compared only as autograd calls it"
        if call.func._schema.is_mutable and call.shares_memory:  # noqa: SLF001 (as in kernel_call)
            return "it writes into memory that two arguments share"
        return None

    def _compare(self, given: KernelCall, found: list[Tensor] | None) -> None:
        """Compare a call with the one on contiguous copies: as it was ``found``, or in each layout."""
        plain = given.replaced([_contiguous(one.tensor) for one in given.arguments])
        if found is not None and all(map(_same_layout, given.arguments, plain.arguments)):
            return
        wanted = plain.run()
        if wanted is None:
            self.not_tried["it raises when it is called alone"].add(plain.name)
            return
        compared = _Compared(plain, wanted, self._device)
        if found is None:
            self._each_layout(compared)
            return
        self._count(plain)
        if compared.differs(found) is not None:
            self._note(compared, _culprits(compared, given), by_autograd=True)

    def _each_layout(self, compared: _Compared) -> None:
        for at, argument in enumerate(compared.plain.arguments):
            for layout in _layouts_of(argument.tensor, compared.plain):
                tensor = in_layout(argument.tensor, layout)
                if tensor is None:
                    continue
                other = compared.plain.with_argument(at, tensor)
                if _same_layout(other.arguments[at], argument):
                    continue
                found = other.run()
                if found is None:
                    self.not_tried["it raises for a layout"].add(other.name)
                    continue
                self._count(other)
                if compared.differs(found) is not None:
                    self._note(compared, iter([(at, other)]), by_autograd=False)
                    return

    def _count(self, call: KernelCall) -> None:
        self.calls += 1
        self.tried.add(call.name)

    def _note(self, compared: _Compared, culprits: Iterator[tuple[int, KernelCall]], *, by_autograd: bool) -> None:
        """Store the first of some calls that differs, if it differs each time and the plain call never does."""
        if not compared.steady:
            self.not_tried["it gives other values each time"].add(compared.plain.name)
            return
        for at, call in culprits:
            again = [compared.differs(found) for found in (call.run() for _ in range(_AGAIN)) if found is not None]
            if not again or again[0] is None or None in again or compared.rounds(call, again[0]):
                continue
            why = self._why_unjudged(compared, call)
            if why is not None:
                self.not_tried[why].add(call.name)
                continue
            argument, plain = call.arguments[at], compared.plain.arguments[at]
            self.fault = LayoutFault(
                kernel=call.name,
                argument=str(argument),
                tensor=f"{str(plain.tensor.dtype).removeprefix('torch.')} {tuple(plain.tensor.shape)}",
                strides=strides_of(argument.tensor) or (),
                contiguous=strides_of(plain.tensor) or (),
                by_autograd=by_autograd,
                ignored=compared.ignores(at, call),
                seen=again[0],
            )
            return

    def _why_unjudged(self, compared: _Compared, call: KernelCall) -> str | None:
        """Return why a call that differs accuses no kernel, or None."""
        if self._device.wrong_copies and not compared.has_values_of(call):
            return COPIED_WRONG
        return WRONG_ON_CPU if compared.is_wrong_on_cpu(call) else None


def in_layout(tensor: Tensor, layout: str) -> Tensor | None:
    """Return a copy of a tensor in a layout; None if its device has no such layout."""
    try:
        return arrange(on_cpu(tensor), layout, tensor.device)
    except REFUSALS:
        return None


class _Compared:
    """A call on contiguous arguments and its results, as the reference for others; the CPU compares them.

    The device's own kernels that compare may be wrong, or missing in a dtype.
    """

    def __init__(self, plain: KernelCall, wanted: list[Tensor], device: Device) -> None:
        self.plain, self._wanted, self._device = plain, list(map(on_cpu, wanted)), device
        self._room = room_in(device.numerics, [plain.name])

    def differs(self, found: list[Tensor]) -> Difference | None:
        """Return the difference beyond rounding of two results, or None."""
        found = list(map(on_cpu, found))
        if all(map(same_bits, found, self._wanted)):
            return None
        numbers = [number for number in range(len(found)) if self._counts(number, found[number])]
        given = map_leaves(_moved, (self.plain.args, self.plain.kwargs))
        here = [_moved(self._wanted[number]) for number in numbers]
        with judged_with(self._room):
            return difference(self.plain.as_function(numbers), given, here, [found[number] for number in numbers])

    def rounds(self, call: KernelCall, seen: Difference) -> bool:
        """Return whether a difference is rounding: numeric, and in another dtype it changes as eps does."""
        if seen.error is None or seen.dtype is None:
            return False
        other = companion(seen.dtype)
        again = _distance(_in_dtype(call, other).run(), _in_dtype(self.plain, other).run())
        return shrinks(seen.error, again, seen.dtype, other)

    def ignores(self, at: int, call: KernelCall) -> bool:
        """Return whether a call gives the result for its argument ``at`` read as if it were contiguous."""
        tensor, plain = call.arguments[at].tensor, self.plain.arguments[at].tensor
        strides, found = strides_of(plain), call.run()
        reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides_of(tensor) or (), strict=False))
        if strides is None or found is None or reach + 1 < tensor.numel():
            return False
        try:
            read = tensor.as_strided(tensor.shape, strides, offset_of(tensor)).clone()
        except REFUSALS:
            return False
        if same_bits(on_cpu(read), on_cpu(plain)):
            return False
        other = self.plain.with_argument(at, read).run()
        return other is not None and _Compared(self.plain, other, self._device).differs(found) is None

    def is_wrong_on_cpu(self, call: KernelCall) -> bool:
        """Return whether torch's CPU kernel, not being the device's, also differs or raises in the same layouts."""
        if self._device.is_cpu:
            return False
        plain = self.plain.replaced([_moved(one.tensor) for one in self.plain.arguments])
        laid_out = call.replaced([kept(one.tensor, on_cpu(one.tensor)) for one in call.arguments])
        wanted, found = plain.run(), laid_out.run()
        if wanted is None or found is None:
            return wanted is not None
        return _Compared(plain, wanted, device_of(torch.device("cpu"))).differs(found) is not None

    def has_values_of(self, call: KernelCall) -> bool:
        """Return whether each argument, and each copy of one that is written, has the values of the plain call."""
        pairs = zip(call.arguments, self.plain.arguments, strict=True)
        return all(
            same_bits(on_cpu(copy), on_cpu(own.tensor))
            for one, own in pairs
            for copy in (one.tensor, *([kept(one.tensor), kept(own.tensor)] if one.written else []))
        )

    @property
    def steady(self) -> bool:
        """Whether the plain call gives the same result again, except for rounding."""
        again = [self.plain.run() for _ in range(_AGAIN)]
        return all(found is not None and self.differs(found) is None for found in again)

    def _counts(self, number: int, found: Tensor) -> bool:
        """Return whether a result has a meaning, unlike a workspace or one that a kernel may leave empty."""
        if number >= _DEFINED.get(self.plain.name, len(self._wanted)):
            return False
        return not _is_workspace(found, self.plain) and bool(found.numel()) == bool(self._wanted[number].numel())


def _distance(one: list[Tensor] | None, other: list[Tensor] | None) -> float:
    """Return the largest difference between two lists of results; infinite if there is none, or it is not finite."""
    if one is None or other is None:
        return math.inf
    found = 0.0
    for got, wanted in zip(map(on_cpu, one), map(on_cpu, other), strict=True):
        if got.layout is torch.strided and got.is_floating_point() and got.numel() and got.shape == wanted.shape:
            difference = float((got - wanted).abs().max())
            found = max(found, difference if math.isfinite(difference) else math.inf)
    return found


def _in_dtype(call: KernelCall, dtype: torch.dtype) -> KernelCall:
    """Return a call with its floating arguments in another dtype, each with the strides that it has."""
    return call.replaced([_with_strides(one.tensor, dtype) for one in call.arguments])


def _with_strides(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    strides = strides_of(tensor)
    if not tensor.is_floating_point():
        return tensor
    if strides is None:
        return tensor.to(dtype)
    once = tensor[tuple(slice(0, None if stride else 1) for stride in strides)]
    other = torch.empty_strided(once.shape, strides, dtype=dtype, device=tensor.device).copy_(once)
    return other.expand(tensor.shape)


def _culprits(compared: _Compared, given: KernelCall) -> Iterator[tuple[int, KernelCall]]:
    """Yield calls with one original argument each, then the whole original call under its first such argument."""
    plain = compared.plain
    other = [
        at for at, pair in enumerate(zip(given.arguments, plain.arguments, strict=True)) if not _same_layout(*pair)
    ]
    for at in other:
        yield at, plain.with_argument(at, given.arguments[at].tensor)
    yield other[0], given


def _layouts_of(tensor: Tensor, call: KernelCall) -> Iterator[str]:
    if _has_layouts(tensor) and not _is_workspace(tensor, call):
        yield from (layout for layout, dimensions in LAYOUTS.items() if tensor.dim() in dimensions)


def _is_workspace(tensor: Tensor, call: KernelCall) -> bool:
    """Return whether a tensor is memory of a library: one-dimensional bytes, of a kernel that computes other numbers.

    Only the library knows the meaning of these bytes.
    """
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1:
        return False
    return any(one.tensor.is_floating_point() for one in call.arguments)


def _has_layouts(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and tensor.dim() > 0 and tensor.numel() > 1


def _same_layout(one: Argument, other: Argument) -> bool:
    tensors = one.tensor, other.tensor
    return len(set(map(strides_of, tensors))) == 1 and len(set(map(offset_of, tensors))) == 1


def _as_given(tensor: Tensor, *, written: bool) -> Tensor:
    return kept(tensor) if written else tensor.detach()


def _contiguous(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _moved(leaf: Any) -> Any:
    return on_cpu(leaf).clone() if isinstance(leaf, Tensor) else leaf
