"""The plan: the checks of a run, from the contract or on a user's schedules, and their number."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradconform.fixtures.schedules import Schedule, read_csv
from gradconform.judge.chain import chained
from gradconform.results import Place
from gradconform.user_input.values import Profile, SelectionError, profile_named

from .cases import on_chain
from .check import Check
from .extra_ids import ON_SCHEDULES
from .selection import of_profile, selected
from .shard import Shard


@dataclass(frozen=True, slots=True)
class Item:
    """One check on one device and dtype, by name."""

    check: Check
    device: str
    dtype: str

    @property
    def place(self) -> Place:
        """Return the place of its result in a run."""
        return Place(self.check.id, self.device, self.dtype)

    @property
    def name(self) -> str:
        """Return the item's name, as pytest shows it: ``full.gradients.mlp[cpu-float32]``."""
        return self.place.name


@dataclass(frozen=True, slots=True)
class Plan:
    """The selected items in order, and the size of the manifest they were selected from.

    ``shard`` is the report's entry on the part of a divided plan that the items form, None if they are the whole plan.
    """

    items: tuple[Item, ...]
    manifest: int
    profile: Profile
    shard: Mapping[str, Any] | None = None


def make_plan(  # noqa: PLR0913 (these are the options a user has)
    checks: Mapping[str, Check],
    *,
    profile: str = "standard",
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    cells: Sequence[tuple[str, str]] = (("cpu", "float32"),),
    shard: Shard | None = None,
) -> Plan:
    """Return the plan: all checks of ``profile``, narrowed to ids that match ``include`` and not ``exclude``.

    ``cells`` are the devices and dtypes that each of them runs on. Patterns are globs over check ids. Of the items that
    are left, ``shard`` takes its part. Raises :class:`~gradconform.user_input.values.SelectionError` for an unknown
    profile, for a pattern that matches no check, and for a selection or a shard that is empty.
    """
    known = profile_named(profile)
    manifest, some = of_profile(checks, known), selected(checks, known, include, exclude)
    if not cells:
        msg = "no device or no dtype is given; name at least one of each"
        raise SelectionError(msg)
    items = _items(some, cells)
    if not items:
        reported = ", ".join(dict.fromkeys(dtype for _, dtype in cells))
        msg = f"no selected check runs in {reported}; name another dtype"
        raise SelectionError(msg)
    plan = Plan(items, len(_items(manifest, cells)), known)
    return plan if shard is None else _part(plan, shard)


def _items(checks: Sequence[Check], cells: Sequence[tuple[str, str]]) -> tuple[Item, ...]:
    """Return each check on each device, in each dtype to which it applies."""
    return tuple(
        Item(check, device, dtype) for device, dtype in cells for check in checks if check.runs_on(device, dtype)
    )


def _part(plan: Plan, shard: Shard) -> Plan:
    """Return a shard's part of a plan."""
    positions = shard.positions([(item.device, item.dtype, item.check.trials[:1]) for item in plan.items])
    if not positions:
        msg = f"shard {shard.index}/{shard.count} has no check of {len(plan.items)}; use fewer shards"
        raise SelectionError(msg)
    record = shard.record(positions, [item.name for item in plan.items])
    return replace(plan, items=tuple(plan.items[position] for position in positions), shard=record)


#: A schedule, or the CSV file of one.
ScheduleOrFile = str | os.PathLike[str] | Schedule


def schedules_of(given: ScheduleOrFile | Sequence[ScheduleOrFile]) -> dict[str, Schedule]:
    """Return schedules by the last part of their check's id; a duplicate counts once.

    Raises :class:`~gradconform.fixtures.schedules.order.ScheduleError` (a ``ValueError``) with file, row and column
    for a file that cannot be read or that holds no legal, complete schedule.
    """
    several = [given] if isinstance(given, (str, os.PathLike, Schedule)) else given
    found: dict[str, Schedule] = {}
    for schedule in dict.fromkeys(one if isinstance(one, Schedule) else read_csv(one) for one in several):
        word = re.sub(r"[^a-z0-9]+", "-", schedule.name.lower()).strip("-") or "schedule"
        numbered = (f"{word}-{number}" for number in range(2, len(found) + 3))
        found[word if word not in found else next(name for name in numbered if name not in found)] = schedule
    return found


def check_of(name: str, schedule: Schedule) -> Check:
    """Return the check that judges a schedule on a chain of plain stages."""
    trial = on_chain(schedule)
    return Check(
        id=f"{ON_SCHEDULES}{name}",
        level="MUST",
        profile="quick",
        requirement=(
            f"Stages chained in the order of {schedule.name} ({schedule.size}) MUST give what one plain backward of "
            "the whole model gives."
        ),
        why="Each order of actions tests other code of an implementation.",
        catches="a backward that is wrong in this order.",
        trials=(trial,),
        judge=chained,
        needs=trial.needs,
        source=f"{chained.__module__}:{chained.__qualname__}",
    )
