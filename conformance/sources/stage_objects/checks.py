"""Prepares a run of the checks on a framework's stage objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gradconform.devices.prepared import device_named
from gradconform.pipeline.extra_checks import in_this_process, named_target
from gradconform.pipeline.stage_objects import stage_objects_named
from gradconform.pipeline.stage_objects.chain import Subject
from gradconform.pipeline.stage_objects.checks import CHECKS
from gradconform.requirements.clause import Clause
from gradconform.run.prepared_run import Planned, PreparedRun


def prepare(options: Any) -> PreparedRun:
    """Return the prepared run on stage objects."""
    device = device_named(options.device, options.device_plugins)
    subject = Subject(stage_objects_named(options.target), device)
    planned = Planned(
        clauses=tuple(CHECKS),
        target=named_target(options.target, subject.name),
        lines=("stage objects on one process",),
        device=options.device,
        dtype="float32",
    )
    return PreparedRun(options, planned, in_this_process(subject, CHECKS, device=options.device, dtype="float32"))


def catalogue() -> Iterator[tuple[Clause, str]]:
    """Yield each check on stage objects, without options of its own."""
    yield from ((check, "") for check in CHECKS)
