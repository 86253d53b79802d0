"""The stage objects of a framework, in one process: ``gradconform stage-objects``."""

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
        help="torch, or package.module:object with the methods of StageObjects",
    ),
    RUN_OPTIONS["checks"],
    Option(name="device", metavar="DEVICE", default="cpu", check=str, help="put the stages on DEVICE"),
    RUN_OPTIONS["device_plugins"],
    RUN_OPTIONS["shard"],
    replace(RUN_OPTIONS["waivers"], unset="none"),
)

SOURCE = CommandSource(
    command="stage-objects",
    help="""Judge the stage objects of a framework.

Judge the stage objects of a framework in one process: compare chains of manual and traced stages with the whole
model, and check dw_builder, caches, required errors and freed memory.
""",
    options=_OPTIONS,
    has_catalogue=True,
    values=values_class(
        "StageObjectsOptions",
        "The options of ``gradconform stage-objects``.",
        {one.name: one for one in _OPTIONS},
        command="stage-objects",
    ),
)
