"""How much less precise than IEEE a trial is on a device, by the device's numeric profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from gradconform.devices.device import device_of
from gradconform.devices.numeric_profile import NumericProfile
from gradconform.drive.driver import drive
from gradconform.drive.reference64 import References
from gradconform.reference.autograd import AutogradAdapter
from gradconform.tolerance import Room, rooms_of
from gradconform.torch_releases.dispatch import DispatchMode


def room_of(references: References) -> Room:
    """Return the errors of float32 that the device's numeric profile explains in the operations of a trial.

    Only a trial that plain autograd seems to get wrong needs this: it runs plain autograd there once more.
    """
    materials = references.materials
    profile = device_of(materials.device).numerics
    if profile is None or not (profile.sentences or profile.smallest_error):
        return Room()
    names = _Names()
    drive(AutogradAdapter(), materials, loss_scale=references.loss_scale, log=names)
    return room_in(profile, names.found)


def room_in(profile: NumericProfile | None, operations: Iterable[str]) -> Room:
    """Return the errors of float32 that ``profile`` explains in ``operations``, one name for each call."""
    if profile is None:
        return Room()
    return Room(relative=profile.precision(operations), absolute=profile.smallest_error)


@contextmanager
def judged_with(room: Room) -> Iterator[None]:
    """Judge float32 with this much more room meanwhile."""
    with rooms_of({"float32": room}):
        yield


class _Names(DispatchMode):
    """Collects the name of each operation that runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and keep its name."""
        del types
        self.found.append(func.name().partition(".")[0])
        return func(*args, **(kwargs or {}))
