"""The commands of sources that start no worker of the kit: ``pipeline``, ``schedule-text`` and ``stage-objects``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from gradconform.run.prepared_run import PreparedRun
from gradconform.sources.pipeline import PipelineOptions
from gradconform.sources.pipeline import checks as of_pipelines
from gradconform.sources.schedule_text import ScheduleTextOptions
from gradconform.sources.schedule_text import checks as of_schedule_text
from gradconform.sources.stage_objects import StageObjectsOptions
from gradconform.sources.stage_objects import checks as of_stage_objects
from gradconform.user_input.values import current_folder_first

from .run import Way, judge, records


def _judged(arguments: argparse.Namespace, way: Way) -> int:
    if arguments.target is None and arguments.resume is None:
        arguments.parser.error("the following arguments are required: TARGET")
    with records(arguments) as file, current_folder_first():
        return judge(arguments, file, way).code


def pipeline(arguments: argparse.Namespace) -> int:
    """Judge training steps or schedules on several processes; return the exit code of the verdict."""

    def prepared(_: argparse.Namespace, options: PipelineOptions, __: Mapping[str, Any] | None) -> PreparedRun:
        return of_pipelines.prepare(options)

    return _judged(arguments, Way(PipelineOptions, prepared, of_pipelines.area_of))


def schedule_text(arguments: argparse.Namespace) -> int:
    """Judge a runtime's work on schedules; return the exit code of the verdict."""
    return _judged(arguments, Way(ScheduleTextOptions, lambda _, options, __: of_schedule_text.prepare(options), None))


def stage_objects(arguments: argparse.Namespace) -> int:
    """Judge stage objects; return the exit code of the verdict."""
    return _judged(arguments, Way(StageObjectsOptions, lambda _, options, __: of_stage_objects.prepare(options), None))
