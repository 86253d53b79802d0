"""Devices and dtypes that a user names. Importing it imports no torch: names are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradconform.devices.registered import register_device
from gradconform.devices.selection import SelectionError, UnusableDeviceError, nearest

if TYPE_CHECKING:
    from gradconform.devices.choice import Choice, choose
    from gradconform.devices.device import Device, device_of
    from gradconform.devices.dtypes import DTYPES, dtype_named
    from gradconform.devices.naming import device_named

_HOME = {
    "Choice": "gradconform.devices.choice",
    "DTYPES": "gradconform.devices.dtypes",
    "Device": "gradconform.devices.device",
    "choose": "gradconform.devices.choice",
    "device_named": "gradconform.devices.naming",
    "device_of": "gradconform.devices.device",
    "dtype_named": "gradconform.devices.dtypes",
}

__all__ = [
    "DTYPES",
    "Choice",
    "Device",
    "SelectionError",
    "UnusableDeviceError",
    "choose",
    "device_named",
    "device_of",
    "dtype_named",
    "nearest",
    "register_device",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used (PEP 562)."""
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOME[name]), name)
