"""The command ``gradconform merge``."""

from __future__ import annotations

import argparse
from typing import Any

from gradconform.cli.console import refuse, width, write
from gradconform.cli.output_file import OutputFileError, check_writable, hand_over
from gradconform.cli.parsing import EXIT_CODES
from gradconform.results import Report


def add_merge(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "merge",
        help="put the reports of shards together and give the verdict",
        description=(
            "Put the reports of 'gradconform run --shard I/N' (or pytest --gradconform-shard) together and give the "
            "verdict on the whole. Refused where one is missing, or where target, contract, kit, seed, profile, "
            "waivers or environment differ."
        ),
        epilog=EXIT_CODES,
    )
    one.set_defaults(command=merge_reports, parser=one)
    one.add_argument("reports", metavar="REPORT.json", nargs="+", help="the report of each shard, in any order")
    one.add_argument("--json", metavar="PATH", help="write the whole report there as JSON")


def merge_reports(arguments: argparse.Namespace) -> int:
    """Merge the reports; return the exit code of the verdict on the whole."""
    from gradconform.compare.merging import MergeError, merge  # noqa: PLC0415 (only this command needs it)
    from gradconform.report.terminal import closing, opening  # noqa: PLC0415 (as above)
    from gradconform.schema.reading import ReportError  # noqa: PLC0415 (as above)

    try:
        path = None if arguments.json is None else check_writable(arguments.json)
        report = merge({name: Report.from_json(name) for name in arguments.reports})
    except (OutputFileError, ReportError, MergeError) as error:
        return refuse(error)
    code = report.exit_code
    if path is not None:
        code = hand_over(path, report.to_json(), code=code)
    cells = list(dict.fromkeys((result.device, result.dtype) for result in report.results))
    write([*opening(report, cells, width()), *closing(report, width())])
    return code
