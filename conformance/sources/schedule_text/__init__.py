"""What a pipeline runtime does with schedules before anything runs: ``gradconform schedule-text``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradconform.run.options import OPTIONS as RUN_OPTIONS
from gradconform.run.source import Source
from gradconform.user_input.option import Option, values_class

SOURCE = Source(
    command="schedule-text",
    options=(
        Option(
            name="target",
            metavar="TARGET",
            loads_files=True,
            help="torch, or package.module:object with the methods of ScheduleText",
        ),
        Option(
            name="schedule",
            metavar="NAME",
            kind="several",
            default=(),
            loads_files=True,
            unset="all recorded schedules",
            help="judge this recorded schedule, or a CSV file in torch's format; may be repeated",
        ),
        RUN_OPTIONS["checks"],
        RUN_OPTIONS["shard"],
        replace(RUN_OPTIONS["waivers"], unset="none"),
    ),
)

ScheduleTextOptions: Any = values_class(
    "ScheduleTextOptions", "The options of ``gradconform schedule-text``.", SOURCE.by_name, command=SOURCE.command
)
