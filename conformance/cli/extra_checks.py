"""The commands of sources that start no worker of the kit, such as ``pipeline`` and ``stage-objects``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gradconform.run.prepared_run import PreparedRun
from gradconform.run.sources import COMMANDS, FOLDER, command_source
from gradconform.user_input.values import current_folder_first

from .run import Way, judge, records


def judge_source(arguments: argparse.Namespace) -> int:
    """Judge the target by the checks of the command's source; return the exit code of the verdict."""
    if arguments.target is None and arguments.resume is None:
        arguments.parser.error("the following arguments are required: TARGET")
    source = command_source(arguments.source)
    checks = import_module(f"{FOLDER}.{COMMANDS[source.command]}.checks")

    def prepared(_: argparse.Namespace, options: Any, __: Mapping[str, Any] | None) -> PreparedRun:
        run: PreparedRun = checks.prepare(options)
        return run

    with records(arguments) as file, current_folder_first():
        return judge(arguments, file, Way(source.values, prepared, source.area_of)).code
