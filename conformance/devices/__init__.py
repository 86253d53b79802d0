"""Devices and dtypes that a user names. Importing it imports no torch: names are loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .registry import register_device

if TYPE_CHECKING:
    from .choice import Choice, choose
    from .device import Device, device_of
    from .dtypes import DTYPES, dtype_named
    from .ready import device_named

_HOME = {
    "Choice": "gradconform.devices.choice",
    "DTYPES": "gradconform.devices.dtypes",
    "Device": "gradconform.devices.device",
    "choose": "gradconform.devices.choice",
    "device_named": "gradconform.devices.ready",
    "device_of": "gradconform.devices.device",
    "dtype_named": "gradconform.devices.dtypes",
}

__all__ = [
    "DTYPES",
    "Choice",
    "Device",
    "choose",
    "device_named",
    "device_of",
    "dtype_named",
    "register_device",
]


def __getattr__(name: str) -> Any:
    """Load a name when it is first used (PEP 562)."""
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(_HOME[name]), name)
