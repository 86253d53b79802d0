"""``torch.simx``: the functions that torch, and users, expect of a device's module."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Event, Stream, Tensor

__all__ = ["Event", "Stream"]

_initialized = True  # torch.utils.checkpoint keeps the generator's state only of a device that says so


def init() -> None:
    """Do nothing: loading already initialized the device."""


def is_initialized() -> bool:
    """Return True."""
    return True


def is_available() -> bool:
    """Return whether there is at least one index."""
    return device_count() > 0


def device_count() -> int:
    """Return the number of indices."""
    return int(torch.ops.simx.device_count())  # torch.accelerator calls this function


def current_device() -> int:
    """Return the index of this thread."""
    return int(torch.ops.simx.current_device())


def set_device(device: Any) -> None:
    """Make ``device`` the index of this thread."""
    torch.accelerator.set_device_index(_index(device))


class device:  # noqa: N801 (as torch.cuda.device)
    """Make a device the current one within a ``with``; None and a negative index change nothing."""

    def __init__(self, device: Any) -> None:
        self._index = -1 if device is None else _index(device)
        self._before = -1

    def __enter__(self) -> None:
        """Make the device the current one."""
        self._before = current_device()
        if self._index >= 0:
            set_device(self._index)

    def __exit__(self, *_: object) -> None:
        """Restore the previous device."""
        set_device(self._before)


def get_device_name(device: Any = None) -> str:
    """Return the name of the device."""
    return f"simulated accelerator {_index(device)}"


def synchronize(device: Any = None) -> None:
    """Wait for the device, which is always synchronous; raise if it is lost."""
    torch.accelerator.synchronize(_index(device))


def current_stream(device: Any = None) -> Stream:
    """Return this thread's stream of the device."""
    return torch.accelerator.current_stream(_index(device))


def stream(stream: Stream | None) -> AbstractContextManager[Any]:
    """Make a stream the current one within a ``with``; None changes nothing."""
    return nullcontext() if stream is None else stream


def manual_seed(seed: int) -> None:
    """Seed the generator of the current index."""
    torch.ops.simx.seed(current_device(), _as_int64(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all indices."""
    for index in range(device_count()):
        torch.ops.simx.seed(index, _as_int64(seed))


def get_rng_state(device: Any = None) -> Tensor:
    """Return the state of a generator, a tensor of the CPU."""
    state: Tensor = torch.ops.simx.rng_state(_index(device))
    return state


def set_rng_state(state: Tensor, device: Any = None) -> None:
    """Set the state of a generator."""
    torch.ops.simx.set_rng_state(_index(device), state)


def memory_allocated(device: Any = None) -> int:
    """Return the number of bytes in use."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device: Any = None) -> int:
    """Return the largest number of bytes that were in use at once."""
    return torch.accelerator.max_memory_allocated(_index(device))


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset the peak to the memory in use."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return the free bytes and the total bytes."""
    return torch.accelerator.get_memory_info(_index(device))


def empty_cache() -> None:
    """Do nothing: freed memory is returned at once."""


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that autocast may use."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported() -> bool:
    """Return True."""
    return True


def _is_in_bad_fork() -> bool:
    return False  # there is no context that a fork could break


def _index(device: Any) -> int:
    if device is None:
        return current_device()
    if isinstance(device, int):
        return device
    named: Any = torch.device(device)  # its stub says that there is always an index
    return current_device() if named.index is None else int(named.index)


def _as_int64(seed: int) -> int:
    """Return the seed as a signed integer: torch.manual_seed allows the unsigned range."""
    wrap = 1 << 64
    return seed - wrap if seed >= wrap // 2 else seed
