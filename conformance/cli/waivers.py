"""The command ``gradconform waivers``: adds entries for a run's failures, and removes unused entries."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from gradconform.exits import EXIT_CONFORMS
from gradconform.files.user_files import replace_file
from gradconform.reading.report import read_report
from gradconform.report.lines import Line
from gradconform.results import Report
from gradconform.waivers.editing import Filled, added, pruned
from gradconform.waivers.waiver import TEXT_FIELDS

from .console import OutputFileError, refuse_unwritable, write

T = TypeVar("T")


def add(arguments: argparse.Namespace) -> int:
    """Append an entry for each failure that is not waived, with the text from the options."""
    given = {name: getattr(arguments, name) for name in (*TEXT_FIELDS, "expires")}
    filled = Filled(**{name: value for name, value in given.items() if value is not None})
    count = _edit(arguments, partial(added, filled=filled))
    if not count:
        reported = "every failure of the run has a waiver"
    elif filled.missing:
        reported = f"fill in {', '.join(filled.missing)}"
    else:
        reported = f"waived until {filled.expires}"
    write([Line(f"{arguments.waivers}: {count} added; {reported}")])
    return EXIT_CONFORMS


def prune(arguments: argparse.Namespace) -> int:
    """Remove the entries that a run has shown to be unused."""
    gone = _edit(arguments, pruned)
    for number, waiver in gone:
        write([Line(f"removed entry {number}: {waiver.check} ({waiver.reason})")])
    write([Line(f"{arguments.waivers}: {len(gone)} removed")])
    return EXIT_CONFORMS


def _edit(arguments: argparse.Namespace, edited: Callable[[str, Report], tuple[str, T]]) -> T:
    """Write the waiver file as ``edited`` returns it, if that changes it, and return the changes."""
    try:
        text, changed = edited(arguments.waivers, read_report(arguments.report))
        if changed:
            refuse_unwritable(arguments.waivers, "--waivers")
            replace_file(arguments.waivers, text)
    except OSError as error:
        raise OutputFileError(str(error)) from error
    return changed
