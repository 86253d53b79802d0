"""``torch.accelerator``: available from 2.6 on, with fewer functions in the older releases."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .names import Name

#: From 2.9 on. A device's own module, such as ``torch.cuda``, has counters in every release.
MEMORY = Name("torch.accelerator", ("max_memory_allocated",), "returns the peak of memory")


#: The statistics that ``MEMORY`` sorts first, which takes four times as long.
STATISTICS = Name("torch._C", ("_accelerator_getDeviceStats",), "returns the statistics of memory")


def peak_memory(device: torch.device) -> int:
    """Return the peak in bytes of the memory that torch's allocator of the accelerator has handed out."""
    if STATISTICS.there() and device.index is not None:
        try:
            return int(STATISTICS.find()(device.index)["allocated_bytes"]["all"]["peak"])
        except (KeyError, RuntimeError):  # another form, or no allocator yet
            pass
    return int(MEMORY.find()(device))


#: Not in 2.6: there, a lost device raises a RuntimeError like any other error.
LOST = Name("torch", ("AcceleratorError",), "says that a device is lost")


#: Keeps a CUDA stream busy for a number of cycles; torch's own stream tests use it. Other devices have no such name.
SLEEP = Name("torch.cuda", ("_sleep",), "keeps a stream busy")


def sleep_of(device_type: str) -> Callable[[int], object] | None:
    """Return a function that keeps a device type's current stream busy for a number of cycles, or None."""
    return SLEEP.find() if device_type == "cuda" and SLEEP.there() else None


def ends_the_process() -> tuple[type[BaseException], ...]:
    """Return torch's exceptions for exhausted memory or a lost device, after which a process is useless."""
    return (torch.OutOfMemoryError, LOST.find()) if LOST.there() else (torch.OutOfMemoryError,)


def accelerator(*, available: bool = False) -> torch.device | None:
    """Return torch's current accelerator, or None; ``available`` requires that it can be used.

    Without ``available``, releases from 2.7 on name the accelerator that they were built for, and 2.6 the one that is
    present.
    """
    if available and not torch.accelerator.is_available():
        return None
    try:
        return torch.accelerator.current_accelerator()
    except RuntimeError:  # 2.6 raises if there is none
        return None
