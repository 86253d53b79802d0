"""Schedules of a pipeline from files in torch's format: each is judged on a chain of plain stages."""

from __future__ import annotations

from gradconform.run.source import Source
from gradconform.user_input.option import Option, names_written, objects_of

SOURCE = Source(
    options=(
        Option(
            name="schedule",
            loads_files=True,
            metavar="FILE.csv",
            default=(),
            kind="paths",
            help="judge the pipeline schedule in FILE.csv instead of the contract; torch's format, one row per rank",
            changes="plan",
            check=objects_of,
            written=names_written,
            selects=True,
        ),
    ),
)
