"""Selects the checks on a user's schedules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradconform.contract.plan import check_of, schedules_of
from gradconform.run.options import RunOptions
from gradconform.run.selection import Selected


def select(options: RunOptions, measured: Mapping[str, Any] | None) -> Selected:
    """Return one check per schedule on a chain of plain stages; none if the run names stages, which take its place.

    Raises :class:`~gradconform.fixtures.schedules.order.ScheduleError` (a ``ValueError``) for an invalid schedule.
    """
    del measured
    schedules = schedules_of(options.schedule)
    lines = tuple(f"{one.name}: {one.size}" for one in schedules.values())
    checks = () if options.stage else tuple(check_of(name, found) for name, found in schedules.items())
    return Selected(checks=checks, lines=lines)
