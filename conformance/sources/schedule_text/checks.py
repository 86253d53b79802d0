"""Prepares a run of the checks on a runtime's work on schedules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gradconform.fixtures.schedules import RECORDED, Schedule, ScheduleError, read_csv, recorded
from gradconform.pipeline.extra_checks import in_this_process, named_target
from gradconform.pipeline.schedule_text import schedule_text_named
from gradconform.pipeline.schedule_text.checks import checks_of
from gradconform.requirements.clause import Clause
from gradconform.run.prepared_run import Planned, PreparedRun
from gradconform.user_input.values import nearest


def prepare(options: Any) -> PreparedRun:
    """Return the prepared run on a runtime's work on schedules."""
    schedules = _schedules(options.schedule)
    subject, checks = schedule_text_named(options.target), checks_of(schedules)
    planned = Planned(
        clauses=tuple(checks),
        target=named_target(options.target, subject.name),
        lines=tuple(f"{one.name}: {one.size}" for one in schedules),
        device="cpu",
        dtype="text",
    )
    return PreparedRun(options, planned, in_this_process(subject, checks, device="cpu", dtype="text"))


def _schedules(given: Sequence[str]) -> list[Schedule]:
    """Return the named schedules; raise ``ScheduleError`` for a name or a file that gives none."""
    found = []
    for name in given or RECORDED:
        if name.endswith(".csv"):
            found.append(read_csv(name))
        elif name in RECORDED:
            found.append(recorded(name))
        else:
            msg = (
                f"unknown schedule {name!r}; name a CSV file or a recorded schedule; nearest: {nearest(name, RECORDED)}"
            )
            raise ScheduleError(msg)
    return found


def catalogue() -> Iterator[tuple[Clause, str]]:
    """Yield each check on a recorded schedule, without options of its own."""
    yield from ((check, "") for check in checks_of([recorded(name) for name in RECORDED]))
