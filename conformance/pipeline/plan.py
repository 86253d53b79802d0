"""Turns what a user asks for into cases: every schedule in every scenario that it can be run in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gradconform.fixtures.schedules import Schedule, ScheduleError, read_csv
from gradconform.fixtures.schedules.from_torch import NAMES, of_torch
from gradconform.pipeline.question import Case
from gradconform.pipeline.scenarios import SCENARIOS, Scenario

#: Schedules of one stage per rank, and those that put the last stages on the first rank: exactly two.
_ONE_STAGE = frozenset({"GPipe", "1F1B"})


def cases_of(
    schedules: Sequence[str], *, ranks: int, stages_per_rank: int | None = None, microbatches: int | None = None
) -> tuple[Case, ...]:
    """Return the cases of schedules: torch's names, or paths of CSV files.

    ``stages_per_rank`` is 2 where a schedule takes several, ``microbatches`` four per rank. Raises
    :class:`~gradconform.fixtures.schedules.placed.ScheduleError` (a ``ValueError``) for a name, a size or a file that
    gives no legal schedule.
    """
    cases: list[Case] = []
    for name in dict.fromkeys(schedules):
        if name.endswith(".csv"):
            cases += _of_file(name, ranks)
        else:
            cases += _of_class(name, ranks, stages_per_rank, microbatches or 4 * ranks)
    return tuple(cases)


def _of_file(path: str, ranks: int) -> list[Case]:
    schedule = read_csv(path)
    if schedule.ranks != ranks:
        msg = f"the schedule {path!r} has {schedule.ranks} rows, one per rank, and {ranks} ranks were asked for"
        raise ScheduleError(msg)
    # A pipeline on one rank would be another schedule than the file's.
    return [
        _case(schedule, scenario, str(Path(path).resolve()), from_file=True)
        for scenario in SCENARIOS
        if not scenario.alone
    ]


def _of_class(name: str, ranks: int, stages_per_rank: int | None, microbatches: int) -> list[Case]:
    known = {one.lower(): one for one in NAMES}
    if name.lower() not in known:
        msg = f"{name!r} is no schedule; expected one of {', '.join(NAMES)}, all, or the path of a CSV file"
        raise ScheduleError(msg)
    name = known[name.lower()]
    per_rank = stages_per_rank or (1 if name in _ONE_STAGE else 2)
    whole = of_torch(name, ranks=ranks, stages_per_rank=per_rank, microbatches=microbatches)
    alone = of_torch(name, ranks=1, stages_per_rank=per_rank, microbatches=microbatches)
    return [_case(alone if scenario.alone else whole, scenario, name, from_file=False) for scenario in SCENARIOS]


def _case(schedule: Schedule, scenario: Scenario, named: str, *, from_file: bool) -> Case:
    word = re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z]{2})(?=[A-Z][a-z])", "-", schedule.name)
    word = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "schedule"
    return Case(
        id=f"pipeline.{word}.{scenario.name}",
        schedule=named,
        from_file=from_file,
        size=f"{schedule.name} ({schedule.size})",
        scenario=scenario.name,
        rows=schedule.rows,
        microbatches=schedule.microbatches,
    )
