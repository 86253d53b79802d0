"""Modules that make devices usable: named by the user, or registered in the entry-point group ``gradconform.devices``.

What torch itself loads (its own autoload of ``torch.backends``) is left to torch. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from functools import lru_cache

from gradconform.devices.registered import by_plugin, register_device, registered_device
from gradconform.devices.selection import UnusableDeviceError

ENTRY_POINTS = "gradconform.devices"


def registered_entries() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points by the type of device that they make usable."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def load_entry(device_type: str) -> bool:
    """Import what is registered for a type of device, if anything is, and keep it as that type's object.

    Raises whatever the import raises.
    """
    entry = registered_entries().get(device_type)
    if entry is None:
        return False
    with by_plugin():
        found = entry.load()
        if registered_device(device_type) is None:
            register_device(device_type, found() if isinstance(found, type) else found)
    return True


@lru_cache(maxsize=64)
def load_plugins(modules: tuple[str, ...], device_types: tuple[str, ...]) -> None:
    """Import the modules that a user names, then what is registered for the types of device; once in a process.

    Raises :class:`~gradconform.devices.UnusableDeviceError` for what cannot be imported.
    """
    at = ""
    try:
        for module in modules:
            at = f"device plugin {module!r}"
            load_module(module)
        for device_type in device_types:
            at = f"what is registered for device {device_type!r}"
            load_entry(device_type)
    except Exception as error:
        msg = f"{at} could not be imported: {type(error).__name__}: {error}"
        raise UnusableDeviceError(msg) from error


def load_module(module: str) -> None:
    """Import a module that makes devices usable; raises whatever the import raises."""
    with by_plugin():
        importlib.import_module(module)
