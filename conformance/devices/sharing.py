"""How worker processes share the indices of a device: evenly, within what the device and the environment allow."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gradconform.devices.selection import SelectionError, UnusableDeviceError

if TYPE_CHECKING:
    from gradconform.devices.choice import Choice

#: The indices that a device named by its type may be run on, such as ``simx:1,simx:3``.
INDICES_VARIABLE = "GRADCONFORM_DEVICE_INDICES"
#: How many worker processes may be on one index, whatever the device's known_limits say.
PROCESSES_VARIABLE = "GRADCONFORM_PROCESSES_PER_INDEX"

#: Set by a worker process of the command, and by pytest-xdist in its own.
WORKER_VARIABLE = "GRADCONFORM_WORKER"
_XDIST_VARIABLE = "PYTEST_XDIST_WORKER"


def allowed(device_type: str, indices: Sequence[str]) -> tuple[str, ...]:
    """Return those of ``indices`` that the environment allows, in its order; all where it names none of the type.

    Raises :class:`~gradconform.devices.UnusableDeviceError` where it names one that cannot be used.
    """
    given = [name.strip() for name in os.environ.get(INDICES_VARIABLE, "").split(",")]
    named = [name for name in given if name.partition(":")[0] == device_type]
    unusable = [name for name in named if name not in indices]
    if unusable:
        msg = f"{INDICES_VARIABLE} names {unusable[0]!r}, which cannot be used; usable here: {', '.join(indices)}"
        raise UnusableDeviceError(msg)
    return tuple(named or indices)


def worker_number() -> int:
    """Return the number of this worker process, from 0; 0 in a process that is none."""
    name = os.environ.get(WORKER_VARIABLE) or os.environ.get(_XDIST_VARIABLE, "").removeprefix("gw")
    return int(name) if name.isdigit() else 0


def place_of(device: str, places: Mapping[str, Sequence[str]], worker: int) -> str:
    """Return where a worker runs what is planned for ``device``: the workers take its indices in turn."""
    several = places.get(device, ())
    return several[worker % len(several)] if several else device


def refuse_crowd(choice: Choice, workers: int) -> None:
    """Raise :class:`~gradconform.devices.SelectionError` where more processes would be on an index than it takes."""
    for device, places in choice.places.items():
        limits = [limit for place in places if (limit := _processes(choice, place)) is not None]
        most = len(places) * min(limits) if limits else workers
        if workers > most:
            msg = (
                f"{workers} worker processes are too many for device {device!r}: it has {len(places)} usable "
                f"{'index' if len(places) == 1 else 'indices'}, and takes {min(limits)} on each; use -n {most}, "
                f"name more indices, or set {PROCESSES_VARIABLE}"
            )
            raise SelectionError(msg)


def _processes(choice: Choice, place: str) -> int | None:
    """Return how many processes may be on an index, or None where nothing limits them."""
    probe = choice.probe_of(place)
    given = os.environ.get(PROCESSES_VARIABLE) or (probe.limits.get("processes_per_index") if probe else None)
    if given is None:
        return None
    if not str(given).isdigit() or int(given) < 1:
        msg = f"processes per index of {place}: {given!r} is no whole number from 1; see {PROCESSES_VARIABLE}"
        raise SelectionError(msg)
    return int(given)
