"""A log of the devices on which a session's operations run, at the level of torch's dispatcher.

An operation counts by the device of the tensors it computes. If it is dispatched to the device, but its kernel passes
its tensors to torch's CPU fallback, it counts as run on the CPU. The fallback copies by ``aten::_to_cpu``, which
nothing else calls. Views, copies and allocations compute nothing and do not count, nor do single numbers on the CPU.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradconform.adapter import Adapter
from gradconform.devices.device import Device, device_of
from gradconform.devices.probe import OPERATIONS
from gradconform.devices.tensor_facts import address_of, facts_withheld, storage_of
from gradconform.torch_releases.accelerator import sleep_of
from gradconform.torch_releases.dispatch import DispatchMode
from gradconform.trees import tensors
from gradconform.trial.materials import Materials

from .driver import NOTHING_SEEN, drive
from .observation import Executed, Observation

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

#: Operations that move or allocate values and compute none.
_NOT_COUNTED = ("empty", "new_empty", "_to_copy", "copy_", "clone", "set_", "resize_", "_copy_from", "lift_fresh")

#: How long another stream is kept busy, in cycles: some milliseconds.
_CYCLES = 5_000_000


def is_logged(materials: Materials) -> bool:
    """Return whether operations of a trial are logged: off the CPU, if the same run does not watch lifetimes.

    They are not logged if a device cannot be watched in this way.
    """
    kind = materials.device.type
    return (
        kind != "cpu" and OPERATIONS not in facts_withheld(kind) and not materials.trial.watch & {"lifetime", "growth"}
    )


def drive_logged(
    adapter: Adapter, materials: Materials, *, loss_scale: float = 1.0, known: Observation = NOTHING_SEEN
) -> Observation:
    """Return the result of :func:`gradconform.drive.driver.drive`, with the executed operations and the peak of memory.

    They are None if operations are not logged.
    """
    if not is_logged(materials):
        return drive(adapter, materials, loss_scale=loss_scale, known=known)
    log = OperationLog(materials.device)
    found = drive(adapter, materials, loss_scale=loss_scale, log=log, known=known)
    return replace(found, executed=log.executed(), peak=log.peak())


def drive_unlogged(
    adapter: Adapter, materials: Materials, *, loss_scale: float = 1.0, known: Observation = NOTHING_SEEN
) -> Observation:
    """Return the result of :func:`gradconform.drive.driver.drive`, with the peak of memory if the device counts it.

    A log would run Python code for each operation. The peak is None if operations of the trial are not logged either.
    """
    counter = device_of(materials.device)
    if not (is_logged(materials) and counter.counts_memory):
        return drive(adapter, materials, loss_scale=loss_scale, known=known)
    memory = Memory(counter)
    found = drive(adapter, materials, loss_scale=loss_scale, known=known)
    return replace(found, peak=memory.peak())


class Memory:
    """The device's own counter of memory, from the creation of this object on."""

    def __init__(self, counter: Device) -> None:
        self._counter = counter
        counter.reset_peak_memory()
        self._before = counter.peak_memory()

    @property
    def counted(self) -> bool:
        """Whether the device counts its memory."""
        return self._before is not None

    def peak(self) -> int | None:
        """Return the largest memory in bytes beyond that at the creation; None if the device does not count it."""
        after = self._counter.peak_memory()
        return None if after is None or self._before is None else after - self._before


class OperationLog(DispatchMode):
    """A context around logged code, entered as often as needed; every run has a new one.

    Memory is read from the device's own counter if that one is proven to change, else it is that of live tensors.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self._counter = device_of(device)
        self._there, self._peak = 0, 0
        self._off_device: Counter[str] = Counter()
        self._live: dict[int, weakref.ref[Any]] = {}
        self._bytes = 0
        self._kind = device.type
        self._fell_back = False
        self._stream = self._counter.stream_reader() if self._counter.has_streams else None
        self._sleep = sleep_of(device.type)
        self._home, self._slowed = 0, set[int]()
        #: Whether the last call ran work on another stream than the caller's.
        self.other_streams = False
        self._memory = Memory(self._counter)
        self._counted = self._memory.counted
        _watch_fall_back(device.type)

    def executed(self) -> Executed:
        """Return the logged operations, after the run."""
        return Executed(self._there, dict(self._off_device))

    def peak(self) -> int:
        """Return the largest memory on the device in bytes, beyond the memory in use before."""
        counted = self._memory.peak()
        return self._peak if counted is None else counted

    def __enter__(self) -> Self:
        """Start logging."""
        _ENTERED.append(self)
        if self._stream is not None:
            self._home, self.other_streams = self._stream(), False
            self._slowed.clear()
        super().__enter__()  # type: ignore[no-untyped-call] # as above
        return self

    def __exit__(self, *raised: object) -> None:
        """Stop logging."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call] # as above
        _ENTERED.pop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the result of the operation, and count it."""
        del types
        if self._stream is not None and not func.is_view and (stream := self._stream()) != self._home:
            self._on_another(stream)
        self._fell_back = False
        found = func(*args, **kwargs) if kwargs else func(*args)
        fell_back = self._fell_back
        name = _counted_name(func)
        if self._counted and not name:
            return found
        if self._counted and isinstance(found, Tensor) and found.device.type == self._kind and not fell_back:
            self._there += 1  # common, and quick
            return found
        made = tensors(found)
        if made and name:
            self._count(name, made, fell_back=fell_back)
        if not self._counted:
            for tensor in made:
                self._weigh(tensor)
        return found

    def _on_another(self, stream: int) -> None:
        """Keep another stream than the caller's busy before its first work, so that missing synchronization shows."""
        self.other_streams = True
        if self._sleep is not None and stream not in self._slowed:
            self._slowed.add(stream)
            self._sleep(_CYCLES)

    def falls_back(self) -> None:
        """Record that the current operation passed its tensors to the CPU."""
        self._fell_back = True

    def _count(self, name: str, made: list[Tensor], *, fell_back: bool) -> None:
        if fell_back or all(tensor.device.type != self._kind for tensor in made):
            if fell_back or any(tensor.dim() for tensor in made):
                self._off_device[name] += 1
        else:
            self._there += 1

    def _weigh(self, tensor: Tensor) -> None:
        """Add the memory of a tensor that is new on the device, until it is freed."""
        if tensor.device.type != self._kind or tensor.layout != torch.strided:
            return
        storage, address = storage_of(tensor), address_of(tensor)
        if storage is None or address is None:
            return
        size = storage.nbytes()
        known = self._live.get(address)
        if not size or (known is not None and known() is not None):
            return
        self._bytes += size
        self._peak = max(self._peak, self._bytes)
        self._live[address] = weakref.ref(storage, self._freed(address, size))

    def _freed(self, address: int, size: int) -> Any:
        def forget(reference: weakref.ref[Any]) -> None:
            if self._live.get(address) is reference:
                del self._live[address]
            self._bytes -= size

        return forget


@cache
def _counted_name(operation: Any) -> str:
    """Return the name of an operation without its overload; empty for one that computes nothing."""
    name: str = operation.name().partition(".")[0]
    return "" if operation.is_view or name.removeprefix("aten::").startswith(_NOT_COUNTED) else name


#: The logs in use, the innermost last.
_ENTERED: list[OperationLog] = []
#: The registrations with torch, by device type; they last as long as the process.
_WATCHED: dict[str, torch.library.Library] = {}


def number_tensor(given: Sequence[object], number: complex) -> Tensor:
    """Return a number among the tensors of a fallback as a tensor that changes no dtype.

    Torch passes the number itself to a Python kernel, where C++ has a tensor for it.
    """
    floats = [one for one in given if isinstance(one, Tensor) and one.is_floating_point()]
    if not isinstance(number, float) or not floats:
        return torch.tensor(number)
    every = next((one.dtype for one in floats if not one.dim()), None)
    return torch.tensor(number, dtype=torch.float64 if every is None or any(one.dim() for one in floats) else every)


def _watch_fall_back(kind: str) -> None:
    """Make torch's CPU fallback report itself: its copy to the CPU calls a kernel that can be registered."""
    if kind in _WATCHED:
        return
    _WATCHED[kind] = library = torch.library.Library("aten", "IMPL")

    def to_cpu(given: list[Tensor | complex]) -> list[Tensor]:
        for log in _ENTERED[-1:]:
            log.falls_back()
        return [one.cpu() if isinstance(one, Tensor) else number_tensor(given, one) for one in given]

    with warnings.catch_warnings():
        # On torch 2.9 a user's kernel replaces torch's with a warning, which is meant for its author.
        warnings.simplefilter("ignore")
        torch.library.register_kernel("aten::_to_cpu", kind, to_cpu, lib=library)
