"""The command ``gradconform report``: reports as pages to look at."""

from __future__ import annotations

import argparse
from typing import Any

from gradconform.cli.console import refuse, write_text
from gradconform.cli.output_file import OutputFileError, check_writable, hand_over
from gradconform.cli.parsing import EXIT_CODES
from gradconform.results import EXIT_CONFORMS, Report

_EXAMPLES = """\
examples:
  gradconform report run.json --html run.html
  gradconform report run.json --markdown - >> "$GITHUB_STEP_SUMMARY"
  gradconform report ours.json torch.json --html side-by-side.html
"""


def add_report(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "report",
        help="show a report as one HTML page or as Markdown; several side by side",
        description=(
            "Write a report as one HTML page that needs no network and no server, or as Markdown. Several reports "
            "stand side by side, each compared with the first. The exit code says nothing of the verdict."
        ),
        epilog=f"{_EXAMPLES}\n{EXIT_CODES}",
    )
    one.set_defaults(command=report, parser=one)
    one.add_argument("reports", metavar="RUN.json", nargs="+", help="what run --json wrote")
    one.add_argument("--html", metavar="PATH", help="write an HTML page there; - is the standard output")
    one.add_argument("--markdown", metavar="PATH", help="write Markdown there; - is the standard output")
    one.add_argument(
        "--intersection", action="store_true", help="of several, only checks that all have; the contracts may differ"
    )


def report(arguments: argparse.Namespace) -> int:
    """Write the pages that are asked for; return 2 for a report that cannot be read, 4 where no page can be written."""
    from gradconform.compare.comparison import CompareError  # noqa: PLC0415 (only this command needs it)
    from gradconform.schema.reading import ReportError  # noqa: PLC0415 (as above)

    asked = {name: getattr(arguments, name) for name in ("html", "markdown") if getattr(arguments, name) is not None}
    if not asked:
        arguments.parser.error("expected --html PATH or --markdown PATH; - is the standard output")
    try:
        for name, path in asked.items():
            if path != "-":
                check_writable(path, option=f"--{name}")
        reports = [Report.from_json(path) for path in arguments.reports]
        pages = {path: _page(name, reports, intersection=arguments.intersection) for name, path in asked.items()}
    except (OutputFileError, ReportError, CompareError) as error:
        return refuse(error)
    return _write(pages)


def _page(form: str, reports: list[Report], *, intersection: bool) -> str:
    from gradconform.report.page import several, single  # noqa: PLC0415 (it imports torch and Jinja2)

    if len(reports) == 1:
        return single.report_page(reports[0]) if form == "html" else single.report_markdown(reports[0])
    runs = several.side_by_side(reports, intersection=intersection)
    return several.runs_page(runs) if form == "html" else several.runs_markdown(runs)


def _write(pages: dict[str, str]) -> int:
    return max([_write_one(path, text) for path, text in pages.items()])


def _write_one(path: str, text: str) -> int:
    if path != "-":
        return hand_over(path, text, code=EXIT_CONFORMS, what="page")
    write_text(text)
    return EXIT_CONFORMS
