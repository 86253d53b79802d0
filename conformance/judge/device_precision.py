"""Computes how much less precise than IEEE a device is in a trial, from its numeric profile and its operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gradconform.devices.numeric_profile import CALLS, FLOAT32_BITS, FLOAT64_BITS, NumericProfile
from gradconform.tolerance import Room, rooms_of

#: An imprecise operation errs by at most this many eps in float32 or in 16 bits; a format of fewer bits errs more.
_MOST_EPS, _MOST_EPS_IN_16_BITS = 512.0, 8.0

#: An error in float64 of at most this many eps is explained by scalar arguments that are rounded to float32: 8 eps of
#: float32.
MOST_EPS_OF_SCALARS = 8.0 * 2.0 ** (FLOAT64_BITS - FLOAT32_BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imprecise:
    """An operation that errs by ``eps`` times eps of ``dtype`` and scale, for a known reason.

    Either a wider dtype has no such error, or, in float64, the device rounds scalar arguments to float32.
    """

    operation: str
    dtype: str
    eps: float


def most_eps(dtype: torch.dtype) -> float:
    """Return the largest error of an imprecise operation in eps; 0 if no wider dtype can show that it is not wrong."""
    real = dtype.to_real() if dtype.is_complex else dtype
    if real is torch.float64 or not real.is_floating_point:
        return 0.0
    return _MOST_EPS if real is torch.float32 else _MOST_EPS_IN_16_BITS


def rooms_for(
    profile: NumericProfile | None, operations: Sequence[str], imprecise: Iterable[Imprecise]
) -> Mapping[str, Room]:
    """Return by dtype the errors that the profile and the imprecise operations explain in a trial.

    ``operations`` has one name for each call.
    """
    rooms, calls = {"float32": room_in(profile, operations)}, Counter(operations)
    for one in imprecise:
        eps = torch.finfo(getattr(torch, one.dtype)).eps
        before = rooms.get(one.dtype, Room())
        relative = min(calls[one.operation], CALLS) * one.eps * eps
        rooms[one.dtype] = Room(relative=max(before.relative, relative), absolute=before.absolute)
    return rooms


def room_in(profile: NumericProfile | None, operations: Iterable[str]) -> Room:
    """Return the errors of float32 that ``profile`` explains in ``operations``, one name for each call."""
    if profile is None:
        return Room()
    return Room(relative=profile.precision(operations), absolute=profile.smallest_error)


@contextmanager
def judged_with(room: Room) -> Iterator[None]:
    """Judge float32 with this additional allowed error within the context."""
    with rooms_of({"float32": room}):
        yield
