"""Device objects: what a vendor, or anybody else, tells the kit about a type of device.

An object is duck-typed, and every part of it is optional. A module with functions of these names is one as it stands:

- ``device_count() -> int``: how many indices there are
- ``synchronize(device)``: wait until all that was started on ``device`` is done
- ``to_cpu(tensor) -> Tensor``: a copy on the CPU, bit by bit
- ``seed(seed)``: seed the generators of all indices
- ``peak_memory(device, *, reset) -> int``: the peak in bytes since the last call with ``reset``; with it, start anew
- ``dtypes``: the names of the dtypes that are worth trying, or a function that returns them
- ``tolerance``: ``c`` of the numeric rule by the name of the dtype, or a function that returns it or
  None; the kit's own where there is none
- ``known_limits``: what the device cannot do, by name, or a function that returns it; the kit itself reads
  ``processes_per_index``, the rest is told
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_OBJECTS: dict[str, object] = {}

#: The types that a plugin has registered: any other process can have them by importing it.
_OF_PLUGINS: set[str] = set()


def register_device(device_type: str, device: object) -> None:
    """Tell the kit about a type of device, such as ``npu``; what was registered before is replaced.

    Raises ``ValueError`` for what is no device type.
    """
    if not (device_type.replace("_", "").isalnum() and device_type.islower()):
        msg = f"{device_type!r} is no device type; expected one as torch spells it, without an index, such as 'npu'"
        raise ValueError(msg)
    _OBJECTS[device_type] = device


def registered_device(device_type: str) -> object | None:
    """Return the object that is registered for a type of device, or None."""
    return _OBJECTS.get(device_type)


def registered_types() -> frozenset[str]:
    """Return the types of device that this process has registered, and no plugin."""
    return frozenset(_OBJECTS) - _OF_PLUGINS


@contextlib.contextmanager
def by_plugin() -> Iterator[None]:
    """Take what is registered meanwhile for a plugin's."""
    before = set(_OBJECTS)
    try:
        yield
    finally:
        _OF_PLUGINS.update(set(_OBJECTS) - before)
