"""What has to be asked to know the devices that are named or discovered. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence

from gradconform.devices.names import DeviceName
from gradconform.devices.plugins import registered_entries
from gradconform.devices.questions import Request


def requests_for(
    names: Sequence[DeviceName], plugins: tuple[str, ...], here: frozenset[str] = frozenset()
) -> list[Request]:
    """Return one request per type of device, and one for torch's accelerator where devices are discovered.

    The CPU is known to work: nothing is asked of it. ``here`` are types that only this process knows.
    """
    named: dict[str, list[DeviceName]] = {}
    for name in names:
        if name.discovers is None and not name.is_cpu:
            named.setdefault(name.type, []).append(name)
    discovers = any(name.discovers for name in names)
    others = sorted({*registered_entries(), *here} - {"cpu"} - set(named)) if discovers else []
    found = [Request(type=None, every=True, plugins=plugins)] if discovers else []
    return found + [
        _request(device_type, named.get(device_type, []), plugins, every=discovers) for device_type in [*named, *others]
    ]


def _request(device_type: str, names: Sequence[DeviceName], plugins: tuple[str, ...], *, every: bool) -> Request:
    """Ask about the indices that are named; about all where one name has none."""
    indices = tuple(int(name.index) for name in names if name.index is not None and name.index != "*")
    return Request(
        type=device_type,
        indices=indices,
        every=every or any(name.index in {None, "*"} for name in names),
        plugins=plugins,
    )
