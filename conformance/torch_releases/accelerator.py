"""``torch.accelerator``: there from 2.6 on, with fewer functions in the older releases."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .names import Name

#: From 2.9 on. A device's own module, such as ``torch.cuda``, has counters in every release.
MEMORY = Name("torch.accelerator", ("max_memory_allocated",), "tells the peak of memory")


#: The statistics that ``MEMORY`` sorts first, which takes four times as long.
STATISTICS = Name("torch._C", ("_accelerator_getDeviceStats",), "tells the statistics of memory")


def peak_memory(device: torch.device) -> int:
    """Return the peak in bytes of the memory that torch's allocator of the accelerator has given out."""
    if STATISTICS.there() and device.index is not None:
        try:
            return int(STATISTICS.find()(device.index)["allocated_bytes"]["all"]["peak"])
        except (KeyError, RuntimeError):  # another form, or no allocator yet
            pass
    return int(MEMORY.find()(device))


#: Not in 2.6: there a device that is lost raises a RuntimeError like any other.
LOST = Name("torch", ("AcceleratorError",), "says that a device is lost")


#: Keeps a stream of CUDA busy for so many cycles; torch's own tests of streams use it. Other devices have none.
SLEEP = Name("torch.cuda", ("_sleep",), "keeps a stream busy")


def sleep_of(device_type: str) -> Callable[[int], object] | None:
    """Return what keeps the current stream of a type of device busy for so many cycles, or None."""
    return SLEEP.find() if device_type == "cuda" and SLEEP.there() else None


def ends_the_process() -> tuple[type[BaseException], ...]:
    """Return what torch raises where memory is used up or the device is lost, after which a process is of no use."""
    return (torch.OutOfMemoryError, LOST.find()) if LOST.there() else (torch.OutOfMemoryError,)


def accelerator(*, available: bool = False) -> torch.device | None:
    """Return the accelerator that torch speaks of, or None; ``available`` asks for one that can be used.

    Without that, releases from 2.7 on name the one that they were built for, and 2.6 the one that there is.
    """
    if available and not torch.accelerator.is_available():
        return None
    try:
        return torch.accelerator.current_accelerator()
    except RuntimeError:  # how 2.6 says that there is none
        return None
