"""The stage objects of a framework, in one process: ``gradconform stage-objects``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradconform.run.options import OPTIONS as RUN_OPTIONS
from gradconform.run.source import Source
from gradconform.user_input.option import Option, values_class

SOURCE = Source(
    command="stage-objects",
    options=(
        Option(
            name="target",
            metavar="TARGET",
            loads_files=True,
            help="torch, or package.module:object with the methods of StageObjects",
        ),
        RUN_OPTIONS["checks"],
        Option(name="device", metavar="DEVICE", default="cpu", check=str, help="put the stages on DEVICE"),
        RUN_OPTIONS["device_plugins"],
        RUN_OPTIONS["shard"],
        replace(RUN_OPTIONS["waivers"], unset="none"),
    ),
)

StageObjectsOptions: Any = values_class(
    "StageObjectsOptions", "The options of ``gradconform stage-objects``.", SOURCE.by_name, command=SOURCE.command
)
