"""Device objects, and the modules that make devices usable: named by the user, or registered as entry points."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from collections.abc import Iterator
from functools import lru_cache

from gradconform.files.entry_points import entry_points
from gradconform.user_input.values import UnusableDeviceError

_OBJECTS: dict[str, object] = {}

#: The types that a plugin has registered; any other process gets them by importing the plugin.
_OF_PLUGINS: set[str] = set()


def register_device(device_type: str, device: object) -> None:
    """Register an object for a device type, such as ``npu``; it replaces an earlier one.

    Raises ``ValueError`` for text that is no device type.
    """
    if not (device_type.replace("_", "").isalnum() and device_type.islower()):
        msg = f"expected a device type as torch spells it, without an index, such as 'npu'; got {device_type!r}"
        raise ValueError(msg)
    _OBJECTS[device_type] = device


def registered_device(device_type: str) -> object | None:
    """Return the object registered for a device type, or None."""
    return _OBJECTS.get(device_type)


def registered_types() -> frozenset[str]:
    """Return the device types that this process registered itself, without those of plugins."""
    return frozenset(_OBJECTS) - _OF_PLUGINS


@contextlib.contextmanager
def by_plugin() -> Iterator[None]:
    """Attribute all registrations in this context to a plugin."""
    before = set(_OBJECTS)
    try:
        yield
    finally:
        _OF_PLUGINS.update(set(_OBJECTS) - before)


ENTRY_POINTS = "gradconform.devices"


def registered_entries() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points by the device type that they make usable."""
    return {entry.name: entry for entry in entry_points(ENTRY_POINTS)}


def load_entry(device_type: str) -> bool:
    """Import the entry point of a device type and keep it as the type's object; return False without one.

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
    """Import the modules that a user names, then the entry points of the device types, once per process.

    Raises :class:`~gradconform.user_input.values.UnusableDeviceError` if one cannot be imported.
    """
    at = ""
    try:
        for module in modules:
            at = f"device plugin {module!r}"
            load_module(module)
        for device_type in device_types:
            at = f"the module registered for device {device_type!r}"
            load_entry(device_type)
    except Exception as error:
        msg = f"{at} could not be imported: {type(error).__name__}: {error}"
        raise UnusableDeviceError(msg) from error


def load_module(module: str) -> None:
    """Import a module that makes devices usable; raises whatever the import raises."""
    with by_plugin():
        importlib.import_module(module)
