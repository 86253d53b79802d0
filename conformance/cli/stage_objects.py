"""The command ``gradconform stage-objects``: a framework's stage objects, judged in one process."""

from __future__ import annotations

import argparse
from typing import Any

from gradconform.cli.beside import judge_beside
from gradconform.cli.console import refuse
from gradconform.cli.current_folder import current_folder_first
from gradconform.cli.output_file import OutputFileError, check_writable


def add_stage_objects(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "stage-objects",
        help="judge a framework's stage objects: manual, traced, dw_builder, caches, refusals",
        description=(
            "Judge a framework's stage objects in one process: chains of manual and traced stages against the whole "
            "model, dw_builder, what is refused, and what is let go of."
        ),
    )
    one.set_defaults(command=stage_objects, parser=one)
    one.add_argument(
        "target", metavar="TARGET", help="torch, or package.module:object with the methods of StageObjects"
    )
    one.add_argument("--json", metavar="PATH", help="write the report there as JSON")


def stage_objects(arguments: argparse.Namespace) -> int:
    """Judge stage objects; return the exit code of the verdict."""
    import gradconform.session  # noqa: F401, PLC0415 (before the folder is, so that nothing in it can stand for torch)
    from gradconform.stage_objects.checks import checks  # noqa: PLC0415 (it imports torch)
    from gradconform.stage_objects.subject import stage_objects_named  # noqa: PLC0415 (as above)
    from gradconform.targets import TargetError  # noqa: PLC0415 (as above)

    try:
        path = None if arguments.json is None else check_writable(arguments.json)
        with current_folder_first():
            subject = stage_objects_named(arguments.target)
    except (OutputFileError, TargetError) as error:
        return refuse(error)
    return judge_beside(
        subject, checks(), text=arguments.target, what=("stage objects on one process",), dtype="float32", path=path
    )
