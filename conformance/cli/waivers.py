"""The command ``gradconform waivers``, and the options of ``gradconform run`` that name a waiver file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gradconform.cli.console import refuse, write_text
from gradconform.cli.output_file import check_writable, replace_file
from gradconform.cli.parsing import EXIT_CODES
from gradconform.results import EXIT_CONFORMS, Report
from gradconform.waivers.editing import added, pruned
from gradconform.waivers.file import DEFAULT_FILE, read_waivers

_FORM = """\
A waiver file holds one [[waiver]] for each failure that is expected:

  [[waiver]]
  check = "split.gradients.tied-apart"    # an id, or a glob that matches some
  verdict = "error"                       # or several: ["mismatch", "missing"]
  reason = "a shared parameter frees the graph of the other use"
  issue = "https://example.org/issues/7"
  owner = "ada"
  expires = 2027-01-31                    # the last day on which it holds
  when = { torch = ">=2.13,<2.14" }       # adapter, torch, device, dtype

A failure of another kind than the pinned verdict still fails; a check that
passes although it is waived is told, and fails under --strict. An entry that
has expired, or names no check, is refused before the run.
"""


def add_waivers(one: argparse.ArgumentParser) -> None:
    """Add the options that name a waiver file."""
    only = one.add_mutually_exclusive_group()
    only.add_argument(
        "--waivers",
        metavar="FILE",
        help=f"failures that are expected, see 'gradconform waivers --help' (default: {DEFAULT_FILE}, if there is one)",
    )
    only.add_argument("--no-waivers", action="store_true", help="expect no failure, whatever file there is")


def waivers_named(arguments: argparse.Namespace) -> str | None:
    """Return the waiver file of a run: the one named, or the one in the current folder, if any.

    Raises :class:`~gradconform.waivers.file.WaiverError` for what is wrong in it, as far as no check need be known.
    """
    found = arguments.waivers
    if found is None and not arguments.no_waivers and Path(DEFAULT_FILE).is_file():
        found = DEFAULT_FILE
    if found is not None:
        read_waivers(found)
    return None if found is None else str(found)


def add_waivers_command(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "waivers",
        help="write waivers for the failures of a run, or remove those that it no longer needs",
        description=_FORM,
        epilog=EXIT_CODES,
    )
    which = one.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=type(one))
    add = which.add_parser(
        "add",
        help="write an entry for each failure of a run, to be filled in",
        description=(
            "Append an entry for each failure of a run that is not waived. Reason, issue, owner and expires are "
            "left empty, and the file is refused until somebody has filled them in."
        ),
    )
    prune = which.add_parser(
        "prune",
        help="remove the entries that a run has shown to be needless",
        description=(
            "Remove the entries all of whose checks the run judged, and of which none failed. What the run did not "
            "judge stays, as do comments elsewhere in the file."
        ),
    )
    for command, parser in ((_add, add), (_prune, prune)):
        parser.set_defaults(command=command, parser=parser)
        parser.add_argument("--from", dest="report", metavar="REPORT.json", required=True, help="the report of the run")
        parser.add_argument(
            "--waivers", metavar="FILE", default=DEFAULT_FILE, help=f"the file (default: {DEFAULT_FILE})"
        )


def _add(arguments: argparse.Namespace) -> int:
    try:
        text, count = added(arguments.waivers, Report.from_json(arguments.report))
        if count:
            replace_file(check_writable(arguments.waivers, option="--waivers"), text)
    except (ValueError, OSError) as error:  # of the report, or of the file
        return refuse(error)
    told = "fill in reason, issue, owner and expires" if count else "no failure of the run is without a waiver"
    write_text(f"{arguments.waivers}: {count} added; {told}")
    return EXIT_CONFORMS


def _prune(arguments: argparse.Namespace) -> int:
    try:
        text, gone = pruned(arguments.waivers, Report.from_json(arguments.report))
        if gone:
            replace_file(check_writable(arguments.waivers, option="--waivers"), text)
    except (ValueError, OSError) as error:  # of the report, or of the file
        return refuse(error)
    for number, waiver in gone:
        write_text(f"removed entry {number}: {waiver.check} ({waiver.reason})")
    write_text(f"{arguments.waivers}: {len(gone)} removed")
    return EXIT_CONFORMS
