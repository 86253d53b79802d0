"""Schedules of somebody's own as checks: one per CSV file, beside the contract and no part of it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from gradconform.check import Check
from gradconform.fixtures.schedules import Schedule, read_csv
from gradconform.fixtures.stages.chains import chain_of
from gradconform.judge.chain import chained
from gradconform.trial import Trial

Given = str | os.PathLike[str] | Schedule


def schedules_of(given: Given | Sequence[Given]) -> dict[str, Schedule]:
    """Return schedules by the last part of their check's id; what is given twice counts once.

    Raises :class:`~gradconform.fixtures.schedules.placed.ScheduleError` (a ``ValueError``) with file, row and column
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
    trial = Trial(stages=chain_of(schedule.stages), program=schedule.program, chain=True, loss=True)
    return Check(
        id=f"schedule.file.{name}",
        level="MUST",
        profile="quick",
        requirement=(
            f"Stages chained in the order of {schedule.name} ({schedule.size}) MUST give what one plain backward of "
            "the whole model gives."
        ),
        why="Each order of actions asks an implementation for something of its own.",
        catches="a backward that is wrong in this order.",
        trials=(trial,),
        judge=chained,
        needs=trial.needs,
        source=f"{chained.__module__}:{chained.__qualname__}",
    )
