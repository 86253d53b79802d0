"""What a pipeline runtime does with schedules before anything runs: ``gradconform schedule-text``."""

from __future__ import annotations

from dataclasses import replace

from gradconform.run.options import OPTIONS as RUN_OPTIONS
from gradconform.run.source import CommandSource
from gradconform.user_input.option import Option, values_class

_OPTIONS = (
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
)

SOURCE = CommandSource(
    command="schedule-text",
    help="""Judge how a runtime parses, places and lowers schedules.

Judge what a pipeline runtime does with schedules before anything runs: parse and print actions, reject illegal
schedules, place stages on ranks, merge I and W, and insert communication and sharding.
""",
    examples="""\
examples:
  gradconform schedule-text torch
  gradconform schedule-text torch --schedule mine.csv
  gradconform schedule-text mypackage:Text --schedule ZBVZeroBubble-2x2x3
""",
    options=_OPTIONS,
    has_catalogue=True,
    values=values_class(
        "ScheduleTextOptions",
        "The options of ``gradconform schedule-text``.",
        {one.name: one for one in _OPTIONS},
        command="schedule-text",
    ),
)
