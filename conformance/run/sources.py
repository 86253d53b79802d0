"""The list of all sources of checks: a new kind of check is a folder of :mod:`gradconform.sources` and a name here.

Nothing here imports torch: a source's checks are imported when they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from gradconform.requirements.clause import Clause
from gradconform.user_input.option import Option
from gradconform.user_input.option_help import AFTER_SOURCES, RUN_OPTIONS
from gradconform.user_input.values import SelectionError

from .source import CommandSource, Source

#: The parts of a run, in the order of their options in help and of their checks in a plan.
NAMES = ("schedules", "stages", "operations", "blocks", "settings", "faults")

#: The sources with a command of their own, by the command.
COMMANDS = {
    "pipeline": "pipeline",
    "sharded": "sharded",
    "schedule-text": "schedule_text",
    "stage-objects": "stage_objects",
}

#: The package of the folders.
FOLDER = "gradconform.sources"

#: The descriptions of the parts of a run by name.
SOURCES: Mapping[str, Source] = {name: import_module(f"{FOLDER}.{name}").SOURCE for name in NAMES}


def all_options() -> dict[str, Option]:
    """Return every option of a run by its name, in the order in which help shows them."""
    found: dict[str, Option] = {}
    for option in RUN_OPTIONS:
        if option.name == AFTER_SOURCES:
            found |= {one.name: one for source in SOURCES.values() for one in source.options}
        found[option.name] = option
    return found


def command_source(command: str) -> CommandSource:
    """Return the description of the source with a command of its own; raise ``SelectionError`` for another command."""
    if command not in COMMANDS:
        msg = f"unknown command {command!r}; expected one of {', '.join(COMMANDS)}"
        raise SelectionError(msg)
    found: CommandSource = import_module(f"{FOLDER}.{COMMANDS[command]}").SOURCE
    return found


def options_selecting(check: str) -> dict[str, Any]:
    """Return the options with which a run has this check of a source, and no check of another source.

    None is the default. A check that no id finds again, such as one on a user's stage, keeps the options of its run.
    """
    found = [(source, source.selecting(check)) for source in SOURCES.values() if source.selecting is not None]
    changed = [one.name for source, _ in found for one in source.options if one.changes == "results"]
    return {**dict.fromkeys(changed), "with_contract": None, **next((one for _, one in found if one), {})}


def checks_beside() -> Iterator[tuple[Clause, str]]:
    """Yield each check that has the same id in every run of a source's own command, with the command line."""
    for command, folder in COMMANDS.items():
        if command_source(command).has_catalogue:
            for check, options in import_module(f"{FOLDER}.{folder}.checks").catalogue():
                words = ("gradconform", command, "TARGET", options, "--checks", check.id)
                yield check, " ".join(filter(None, words))
