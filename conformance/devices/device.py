"""One device: seed, wait, read and measure through its registered object, or else through torch."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from gradconform.tolerance import refuse_no_tolerances
from gradconform.torch_releases.accelerator import MEMORY, accelerator, peak_memory

from .copies import Reading, read
from .names import DTYPE_NAMES, dtype_name
from .numeric_profile import NumericProfile
from .probe import COUNTER
from .registry import registered_device
from .tensor_facts import facts_withheld

_MIB = 1 << 20
#: The number of tensors from which one wait serves all, and the byte alignment of each tensor.
_TOGETHER, _ALIGNED = 2, 64
#: The dtypes and shapes of tensors that are copied together, and the number of such forms whose views are kept.
_Signature = tuple[tuple[torch.dtype, torch.Size], ...]
_KEPT_VIEWS = 256
#: The longest wait for a device's thread, in seconds; the thread takes below a millisecond if a core is free.
_AUTOGRAD_S = 1.0
#: How often this thread yields to the device's thread before it sleeps.
_YIELDS = 20
#: Torch's message for a backend that cannot wait; any other error is the device's own.
_NO_WAITING = "Backend doesn't support synchronizing"


class Device:
    """A device, by ``torch_device``, with the object registered for its type (:mod:`gradconform.devices.registry`).

    ``type`` is torch's name of its type. ``is_cpu`` marks the CPU, which needs no generator, copy or clock of its own.
    """

    def __init__(self, device: str | torch.device, registered: object | None = None) -> None:
        """Store the device and its object, which may be None."""
        self.torch_device = torch.device(device)
        self.type = self.torch_device.type
        self.is_cpu = self.type == "cpu"  # read for every tensor
        self._registered = registered
        self._staging: Tensor | None = None
        self._views: dict[_Signature, list[Tensor]] = {}
        self._was_accelerator = False
        #: The numeric profile, if the run has measured it.
        self.numerics: NumericProfile | None = None
        #: Whether an error raised in a backward ends the process, as the probe found.
        self.ends_where_a_backward_raises = False
        #: How views are read, and the ways in which copies are wrong, as the probe found.
        self.reads_views: Reading = "copy"
        self.wrong_copies: frozenset[str] = frozenset()

    def device_count(self) -> int:
        """Return the number of indices: from the object, else torch's module, else the one that is named."""
        own = self._part("device_count")
        if own is not None:
            return int(own())
        if self._is_accelerator:
            return torch.accelerator.device_count()
        count = getattr(self._module, "device_count", None)
        return int(count()) if count is not None else (self.torch_device.index or 0) + 1

    def synchronize(self, *tensors: Tensor) -> None:
        """Wait for the work that was started; if the device cannot wait, read an element of each of ``tensors``."""
        own = self._part("synchronize")
        if own is not None:
            own(self.torch_device)
        elif not (self.is_cpu or self._waited()):
            for tensor in tensors:
                tensor.detach().reshape(-1)[:1].cpu()

    def _waited(self) -> bool:
        """Wait through torch; return False if the device does not support it."""
        if self._is_accelerator:
            try:
                torch.accelerator.synchronize(self.torch_device)
            except RuntimeError as error:
                if _NO_WAITING in str(error):
                    return False
                raise
            return True
        if hasattr(self._module, "synchronize"):
            self._module.synchronize(self.torch_device)
            return True
        return False

    def wait_for_autograd(self) -> None:
        """Wait until autograd has freed the last backward, as far as this device allows.

        Off the CPU, a backward runs in a thread of its device. It may return before that thread has freed the graph and
        its results. One more backward passes through the same thread after it; its own leaf is freed last.
        """
        if self.is_cpu:
            return
        with contextlib.suppress(Exception):  # the checks report every unsupported call, whatever it raises
            leaf = self._zero.detach().requires_grad_()
            held = weakref.ref(leaf)
            torch.autograd.grad(leaf.view(1), leaf, self._zero.view(1))  # its only node runs no kernel of the device
            del leaf
            for _ in range(_YIELDS):  # a sleep takes longer than the thread
                if held() is None:
                    return
                time.sleep(0)
            until = time.monotonic() + _AUTOGRAD_S
            while held() is not None and time.monotonic() < until:
                time.sleep(0.0001)

    @cached_property
    def _zero(self) -> Tensor:
        return torch.zeros((), device=self.torch_device)

    @property
    def flushes_denormals(self) -> bool:
        """Whether float32 numbers below 1.2e-38 are read or written as 0, according to the numeric profile."""
        return self.numerics is not None and self.numerics.denormals_kept is False

    def to_cpu(self, tensor: Tensor) -> Tensor:
        """Return the values on the CPU without a graph; a CPU tensor is returned itself.

        If the device copies views wrong, they are read from their memory. Raises
        :class:`~gradconform.devices.copies.WrongCopyError` if that is wrong too.
        """
        if self.reads_views == "copy":
            return self.copied(tensor)
        return read(tensor.detach(), self.copied, self.reads_views)

    def copied(self, tensor: Tensor) -> Tensor:
        """Return the device's own copy of a tensor on the CPU, right or wrong, without a graph."""
        own = self._part("to_cpu")
        copied: Tensor = own(tensor.detach()) if own is not None else tensor.detach().cpu()
        return copied

    def all_to_cpu(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Return the values of several tensors on the CPU, without a graph.

        A device with streams needs one wait: the copies go into one block of memory that the device can write while the
        CPU continues. A tensor that is not contiguous there is copied alone, since a copy keeps its strides.
        """
        if len(given) < _TOGETHER or not self.has_streams or self._part("to_cpu") is not None:
            return [self.to_cpu(tensor) for tensor in given]
        parts = [tensor.detach() for tensor in given]
        together = [part for part in parts if _is_one_block(part)]
        copies: dict[int, Tensor] = {}
        for part, view in zip(together, self._staged(together), strict=True):
            copies[id(part)] = view.copy_(part, non_blocking=True)
        if copies:
            torch.accelerator.current_stream(self.torch_device).synchronize()
        return [copies[id(part)].clone() if id(part) in copies else self.to_cpu(part) for part in parts]

    def _staged(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Return consecutive views of the block on the CPU, in the dtypes and shapes of ``parts``.

        The same tensors are copied after every action, so the views of the last forms are kept.
        """
        signature = tuple((part.dtype, part.shape) for part in parts)
        known = self._views.get(signature)
        if known is not None:
            return known
        sizes = [-(-part.numel() * part.element_size() // _ALIGNED) * _ALIGNED for part in parts]
        block = self._block(sum(sizes))
        views: list[Tensor] = []
        start = 0
        for part, size in zip(parts, sizes, strict=True):
            end = start + part.numel() * part.element_size()
            views.append(block[start:end].view(part.dtype).view(part.shape))
            start += size
        if len(self._views) >= _KEPT_VIEWS:
            del self._views[next(iter(self._views))]
        self._views[signature] = views
        return views

    def _block(self, size: int) -> Tensor:
        """Return at least ``size`` bytes on the CPU, in pinned memory if the device has it."""
        if self._staging is None or self._staging.numel() < size:
            self._views.clear()  # they are views of the old block
            try:
                self._staging = torch.empty(max(size, _MIB), dtype=torch.uint8, pin_memory=True)
            except (RuntimeError, NotImplementedError):
                self._staging = torch.empty(max(size, _MIB), dtype=torch.uint8)
        return self._staging

    def seed(self, seed: int) -> None:
        """Seed the generators of the CPU and of this device."""
        torch.set_rng_state(cpu_rng_state(seed))  # a tenth of the time of torch.manual_seed
        if not self.is_cpu:
            (self._part("seed") or self._seed_all)(seed)

    @contextlib.contextmanager
    def generators_kept(self) -> Iterator[None]:
        """Restore the generators of the CPU and of this device afterwards, if the device exposes their state."""
        state = torch.get_rng_state()
        put_back = None if self.is_cpu else self._generator_kept()
        try:
            yield
        finally:
            torch.set_rng_state(state)
            if put_back is not None:
                put_back()

    def generator_states(self) -> Tensor:
        """Return the state of the CPU's generator, then this device's state if it exposes it."""
        state = torch.get_rng_state()
        if self.is_cpu or not hasattr(self._module, "get_rng_state"):
            return state
        return torch.cat([state, self._module.get_rng_state(self.torch_device).cpu()])

    def _generator_kept(self) -> Callable[[], None] | None:
        """Return a function that restores this device's generator; None if it does not expose its state."""
        module, device = self._module, self.torch_device
        if not (hasattr(module, "get_rng_state") and hasattr(module, "set_rng_state")):
            return None
        state = module.get_rng_state(device)
        return lambda: module.set_rng_state(state, device)

    def reset_peak_memory(self) -> None:
        """Reset the peak of used memory; does nothing if no counter was proven to move."""
        if self.counts_memory:
            self._counter(reset=True)

    def peak_memory(self) -> int | None:
        """Return the peak in bytes since the last reset; None if no counter was proven to move."""
        return self._counter(reset=False) if self.counts_memory else None

    @cached_property
    def counts_memory(self) -> bool:
        """Whether there is a memory counter that moves with an allocation."""
        if COUNTER in facts_withheld(self.type):
            return False
        try:
            self._counter(reset=True)
            before = self._counter(reset=False)
            block = torch.empty(_MIB, dtype=torch.uint8, device=self.torch_device)
            return self._counter(reset=False) - before >= block.numel()
        except Exception:  # noqa: BLE001 (a backend without a counter raises anything)
            return False

    def _counter(self, *, reset: bool) -> int:
        """Return the peak in bytes; with ``reset``, reset it and return any number. Raises if there is no counter."""
        own = self._part("peak_memory")
        if own is not None:
            return int(own(self.torch_device, reset=reset))
        of_torch = self._is_accelerator and MEMORY.there()
        if reset:
            counters: Any = torch.accelerator if of_torch else self._module
            counters.reset_peak_memory_stats(self.torch_device)
            return 0
        return peak_memory(self.torch_device) if of_torch else int(self._module.max_memory_allocated(self.torch_device))

    @property
    def dtypes(self) -> tuple[str, ...] | None:
        """Return the dtype names that the object recommends to try, or None."""
        found = self._value("dtypes")
        return None if found is None else tuple(str(name).removeprefix("torch.") for name in found)

    @cached_property
    def tolerances(self) -> dict[str, float]:
        """Return the object's ``c`` of the numeric rule by dtype; raises ``ValueError`` for an invalid number."""
        own = self._part("tolerance")
        found = dict(own) if isinstance(own, Mapping) else {n: own(n) for n in DTYPE_NAMES} if callable(own) else {}
        tolerances = {dtype_name(str(name)): value for name, value in found.items() if value is not None}
        refuse_no_tolerances(tolerances)
        return tolerances

    @property
    def known_limits(self) -> Mapping[str, Any]:
        """Return the limits that the object states for the device, by name."""
        return dict(self._value("known_limits") or {})

    def _part(self, name: str) -> Any:
        return getattr(self._registered, name, None)

    def _value(self, name: str) -> Any:
        part = self._part(name)
        return part() if callable(part) else part

    @cached_property
    def _module(self) -> Any:
        """Return torch's module of the device type, such as ``torch.cuda``; None if there is none."""
        try:
            return torch.get_device_module(self.type)
        except RuntimeError:
            return None

    @cached_property
    def _seed_all(self) -> Callable[[int], Any]:
        """Return the function that seeds all generators of this device, from its module if it has one.

        ``torch.manual_seed`` calls it too, and those of all other devices. For each device that is absent, a call keeps
        a formatted stack, which takes a millisecond and is never freed.
        """
        return getattr(self._module, "manual_seed_all", None) or torch.manual_seed

    @cached_property
    def has_streams(self) -> bool:
        """Whether this device has streams that torch knows; other code has to wait for each of them."""
        if self.is_cpu or not self._is_accelerator:
            return False
        try:
            torch.accelerator.current_stream(self.torch_device)
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def stream_reader(self) -> Callable[[], int]:
        """Return a function that returns the number of the calling thread's stream, for a device that has streams."""
        index: Any = self.torch_device.index  # None for a type alone, which torch's annotation omits
        place = self.torch_device if index is None else index  # a lookup by number is faster than one by device
        return lambda: torch.accelerator.current_stream(place).stream_id

    @property
    def _is_accelerator(self) -> bool:
        """Whether torch.accelerator covers this type; a build for another accelerator does not."""
        if not self._was_accelerator:
            current = accelerator()
            self._was_accelerator = current is not None and current.type == self.type
        return self._was_accelerator


def device_of(device: str | torch.device) -> Device:
    """Return the :class:`Device`, with the object registered for its type."""
    found = torch.device(device)
    own = registered_device(found.type)
    key = (found, id(own))
    if key not in _DEVICES:
        _DEVICES[key] = Device(found, own)
    return _DEVICES[key]


#: A cache, so that a device's facts (such as whether it counts memory) are determined only once.
_DEVICES: dict[tuple[torch.device, int], Device] = {}


def _is_one_block(tensor: Tensor) -> bool:
    """Return whether a tensor is exactly its bytes in order."""
    plain = type(tensor) is Tensor and tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg())
    return plain and tensor.numel() > 0 and tensor.is_contiguous()


@contextlib.contextmanager
def denormals_as(flushed: bool) -> Iterator[None]:  # noqa: FBT001 (read as a word of the call)
    """Flush denormals to 0 in this CPU thread, as a device that is compared with it does.

    Only kernels that run in this thread are affected, so torch uses one thread (``one_thread``) while devices are
    judged. A processor without this feature computes as before. If the caller's thread already flushes, it continues
    to.
    """
    if not flushed or float(torch.tensor(1e-39) * 1.0) == 0.0:
        yield
        return
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@lru_cache(maxsize=256)
def cpu_rng_state(seed: int) -> Tensor:
    """Return the state of the CPU's generator after seeding with ``seed``."""
    return torch.Generator().manual_seed(seed).get_state()
