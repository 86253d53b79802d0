"""A device's copies of views: which of them are wrong, and how the kit reads a view without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from .tensor_facts import reach_of

#: Copies a detached tensor of a device to the CPU.
Copy = Callable[[Tensor], Tensor]
#: How a view is read: by its own copy, by a copy of the memory under it, or not at all.
Reading = Literal["copy", "memory", "nothing"]

#: The ways of a copy that may be wrong.
TO_CPU, FROM_CPU, ON_DEVICE, CONTIGUOUS = "to the CPU", "from the CPU", "on the device", "made contiguous"
#: Those that also occur between tensors of the device.
WRITTEN = frozenset({ON_DEVICE, CONTIGUOUS})
#: Some numbers change in a copy to the device and back, such as NaN or -0.0.
VALUES = "of some numbers"

#: The views that are copied, each of a tensor of that shape; the kit gives kernels such arguments.
VIEWS: Mapping[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "every second element": ((6,), lambda x: x[::2]),
        "every second column": ((2, 4), lambda x: x[:, ::2]),
        "every second row": ((4, 2), lambda x: x[::2]),
        "one column": ((4, 3), lambda x: x[:, 1:2]),
        "one column of two, every second": ((4, 2), lambda x: x[:, ::2]),
        "a view with an offset": ((7,), lambda x: x[1:].view(2, 3)),
        "a transposed view": ((2, 3), lambda x: x.t()),
        "reversed dimensions": ((2, 3, 4), lambda x: x.permute(2, 1, 0)),
        "channels last": ((2, 2, 2, 3), lambda x: x.permute(0, 3, 1, 2)),
        "an expanded view": ((2, 1), lambda x: x.expand(2, 3)),
    }
)


class WrongCopyError(Exception):
    """A value is known only through a copy that the device makes wrong: nothing that rests on it can be judged."""


def wrong_copies(device: torch.device, copy: Copy) -> dict[str, str]:
    """Return the ways in which a device copies a view wrong: the first such view, with its values.

    Writing into a view is tried on memory with the same strides, so that a device whose views are copies is not
    charged twice.
    """
    found: dict[str, str] = {}
    reading = reading_of(device, copy)
    for name, (shape, view) in VIEWS.items():
        values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
        for way, got in _copies(view(values.to(device)), view(values), copy, reading):
            wanted = view(values).tolist()
            if way not in found and got.tolist() != wanted:
                found[way] = f"{name}: expected {wanted}, got {got.tolist()}"
    return found


def _copies(there: Tensor, here: Tensor, copy: Copy, reading: Reading) -> Iterator[tuple[str, Tensor]]:
    """Yield the copies of a view that is ``there`` on the device, and ``here`` on the CPU; all of them on the CPU."""
    yield TO_CPU, copy(there)
    yield CONTIGUOUS, copy(there.contiguous())
    if 0 in here.stride() or reading == "nothing":
        return  # several elements at one address, or no way to see what was written
    for way, values in ((FROM_CPU, here), (ON_DEVICE, here.contiguous().to(there.device))):
        with suppress(RuntimeError, NotImplementedError):  # not every device has tensors with given strides
            into = torch.empty_strided(here.shape, here.stride(), device=there.device).fill_(-1.0).copy_(values)
            yield way, read(into, copy, reading)


def reading_of(device: torch.device, copy: Copy) -> Reading:
    """Return the first way of reading views that gives the right elements for each of :data:`VIEWS`."""
    for way in ("copy", "memory"):
        if all(_is_read(device, copy, way, *one) for one in VIEWS.values()):
            return way
    return "nothing"


def _is_read(
    device: torch.device, copy: Copy, way: Reading, shape: tuple[int, ...], view: Callable[[Tensor], Tensor]
) -> bool:
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    try:
        return read(view(values.to(device)), copy, way).tolist() == view(values).tolist()
    except (RuntimeError, NotImplementedError, WrongCopyError):
        return False


def read(tensor: Tensor, copy: Copy, way: Reading) -> Tensor:
    """Return the values of a detached tensor on the CPU; raise :class:`WrongCopyError` if it cannot be read."""
    if way == "copy" or not _is_view(tensor):
        return copy(tensor)
    if way == "memory":
        return _from_memory(tensor, copy)
    msg = f"{tensor.device} copies views to the CPU with other elements (see its pre-flight)"
    raise WrongCopyError(msg)


def _is_view(tensor: Tensor) -> bool:
    """Return whether a tensor is not exactly its bytes in order."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return False
    return not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg()


def _from_memory(tensor: Tensor, copy: Copy) -> Tensor:
    """Return a view's values from a copy of its memory, from the first of its elements to the last one."""
    conjugate, negative = tensor.is_conj(), tensor.is_neg()
    bare = tensor.conj() if conjugate else tensor  # again, which removes the bit
    bare = torch._neg_view(bare) if bare.is_neg() else bare  # noqa: SLF001 (torch has no other name for it)
    shape, strides = bare.shape, bare.stride()
    memory = copy(bare.as_strided((reach_of(shape, strides),), (1,), bare.storage_offset()))
    values = memory.as_strided(shape, strides).clone()
    values = values.conj().resolve_conj() if conjugate else values
    return values.neg() if negative else values
