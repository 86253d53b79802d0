"""Facts that can be observed on a device: only this module reads address, storage, offset or version off the CPU.

A device may have none of them. A wrapper subclass or an opaque tensor raises; tensors of ``lazy`` and of torch_xla can
end the process. So :func:`gradconform.devices.fact_probes.shows` first tries each fact in the probe's own process.
Facts that a device type cannot show are withheld in every later process (:func:`withhold`), and the kit does without
them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gradconform.torch_releases.storage import has_storage

if TYPE_CHECKING:
    from torch import UntypedStorage

#: Facts that are not read on a device type. Two types end the process when an address is read, in torch 2.6 to 2.15.
#: This entry also protects a process that has probed nothing, such as a user's own with the right split.
_WITHHELD: dict[str, frozenset[str]] = {"lazy": frozenset({"address"}), "xla": frozenset({"address"})}


def withhold(device_type: str, facts: Collection[str]) -> None:
    """Read none of ``facts`` on ``device_type`` in this process, as its probe found."""
    _WITHHELD[device_type] = frozenset(facts)


def facts_withheld(device_type: str) -> frozenset[str]:
    """Return the facts that are not read on ``device_type``."""
    return _WITHHELD.get(device_type, frozenset())


#: The types whose tensors on the CPU have a storage.
_PLAIN = frozenset({Tensor, nn.Parameter})


def storage_of(tensor: Tensor) -> UntypedStorage | None:
    """Return the storage of a strided tensor; None if its device shows none."""
    if tensor.layout is not torch.strided:
        return None
    if tensor.is_cpu and type(tensor) in _PLAIN:
        return tensor.untyped_storage()
    if not _shows(tensor, "address") or not has_storage(tensor):
        return None
    try:
        # Call data_ptr() first: on lazy, untyped_storage() ends the process if data_ptr() is 0.
        if tensor.data_ptr() == 0 and tensor.numel():
            return None
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def address_of(tensor: Tensor) -> int | None:
    """Return the address in bytes of the storage of ``tensor``; None if its device shows none."""
    if tensor.is_cpu and type(tensor) in _PLAIN and tensor.layout is torch.strided:  # common, and quick
        return tensor.untyped_storage().data_ptr()
    storage = storage_of(tensor)
    try:
        return None if storage is None else storage.data_ptr()
    except RuntimeError:  # a wrapper subclass: the storage is there, and holds nothing
        return None


def place_of(tensor: Tensor) -> int:
    """Return the address of the storage of ``tensor``; without one, the id of its object.

    Tensors with the same place share memory. Without addresses, two views of one memory have two places.
    """
    if tensor.is_cpu and type(tensor) in _PLAIN and tensor.layout is torch.strided:  # common, and quick
        return tensor.untyped_storage().data_ptr()
    address = address_of(tensor)
    return id(tensor) if address is None else address


def shared_place_of(tensor: Tensor) -> int:
    """Return :func:`place_of`; 0 for a strided tensor without an address.

    So any two tensors that may share memory have the same place.
    """
    address = address_of(tensor)
    if address is None:
        return 0 if tensor.layout is torch.strided else id(tensor)
    return address


def start_of(tensor: Tensor) -> int:
    """Return the address of the first element of ``tensor`` in bytes, counted from :func:`place_of`."""
    return place_of(tensor) + offset_of(tensor) * tensor.element_size()


def are_one_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two floating tensors have the same shape and the same elements of one memory.

    A device that shows no address is tested by a write into ``one``, which is undone.
    """
    if one.shape != other.shape or one.dtype is not other.dtype or not one.numel():
        return False
    if address_of(one) is not None and address_of(other) is not None:
        return start_of(one) == start_of(other)
    with torch.no_grad():
        written = without_repeats(one)
        kept = written.clone()
        written.fill_(float("nan"))
        seen = bool(torch.isnan(other).all())
        written.copy_(kept)
    return seen


def without_repeats(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Return the view of ``tensor`` that has at most one element in each dimension in which ``like`` has stride 0.

    Torch refuses to write into several elements at one address. ``like`` is ``tensor`` itself if it is not given.
    """
    for dimension, stride in enumerate(strides_of(tensor if like is None else like) or ()):
        if stride == 0:
            tensor = tensor.narrow(dimension, 0, min(tensor.shape[dimension], 1))
    return tensor


def version_of(tensor: Tensor) -> int:
    """Return how often ``tensor`` was changed in place; 0 if its device counts no versions."""
    return int(tensor._version) if _shows(tensor, "version") else 0  # noqa: SLF001 (torch has no other name for it)


def strides_of(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the strides of a strided tensor in elements; None if it is not strided, or its device shows none."""
    if tensor.layout is not torch.strided or not _shows(tensor, "offset"):
        return None
    return tensor.stride()


def offset_of(tensor: Tensor) -> int:
    """Return the offset of ``tensor`` in its storage in elements; 0 if its device shows none."""
    return int(tensor.storage_offset()) if _shows(tensor, "offset") else 0


def _shows(tensor: Tensor, *facts: str) -> bool:
    """Return whether all of ``facts`` may be read from tensors of this device."""
    hidden = _WITHHELD.get(tensor.device.type)
    return not hidden or hidden.isdisjoint(facts)


def reach_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements in memory from a view's first element to its last one."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
