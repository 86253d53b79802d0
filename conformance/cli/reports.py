"""The commands that read reports: ``gradconform badge``, ``compare``, ``merge`` and ``report``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from gradconform.exits import EXIT_CONFORMS, EXIT_ENVIRONMENT, EXIT_REGRESSED
from gradconform.reading.comparison import CompareError, compare
from gradconform.reading.merging import merge
from gradconform.reading.report import read_report
from gradconform.report.badge import BadgeError, badge
from gradconform.report.comparison import comparison_lines, comparison_markdown, comparison_values
from gradconform.report.page import pages
from gradconform.report.terminal import opening
from gradconform.results import Report
from gradconform.sources.operations.standings import standings

from .console import kept, width, write, write_json, write_text
from .report_formats import FORMATS
from .report_output import WORDS, ReportOutput, detail_of

#: The formats that can show several reports side by side.
_OF_SEVERAL = {"html", "markdown"}


def _flag(form: str) -> str:
    return f"--{form.replace('_', '-')}"


def compare_reports(arguments: argparse.Namespace) -> int:
    """Compare two reports; return 6 if the condition holds, 0 if it does not."""
    base, new = read_report(arguments.base), read_report(arguments.new)
    with _named([arguments.base, arguments.new]):
        found = compare(
            base,
            new,
            intersection=arguments.intersection,
            headroom_factor=arguments.headroom_factor,
            slower_factor=arguments.slower_factor,
        )
    if arguments.format == "json":
        write_json(comparison_values(found, arguments.fail_on))
    elif arguments.format == "markdown":
        write_text(comparison_markdown(found, arguments.fail_on))
    else:
        write(comparison_lines(found, arguments.fail_on, width(), detail_of(arguments)))
    return EXIT_REGRESSED if arguments.fail_on.holds(found.counts) else EXIT_CONFORMS


@contextmanager
def _named(paths: Sequence[str]) -> Iterator[None]:
    """Add the names of the files to the error for reports that cannot be compared."""
    try:
        yield
    except CompareError as error:
        msg = f"{', '.join(paths)}: {error}"
        raise CompareError(msg) from error


def merge_reports(arguments: argparse.Namespace) -> int:
    """Merge the reports; return the exit code of the verdict on the whole."""
    report = merge({name: read_report(name) for name in arguments.reports})
    return ReportOutput.of(arguments).conclude(report, head=opening(report, _cells(report), width()))


def report(arguments: argparse.Namespace) -> int:
    """Write the requested files, or print each report as its run did; return 4 if one cannot be written."""
    wanted = {name: path for name in FORMATS if (path := getattr(arguments, name)) is not None}
    of_one = [name for name in wanted if name not in _OF_SEVERAL]
    if of_one and len(arguments.reports) > 1:
        arguments.parser.error(
            f"{_flag(of_one[0])} takes one report, got {len(arguments.reports)}; write one file each"
        )
    reports = [read_report(path) for path in arguments.reports]
    if "skip_list" in wanted and not standings(reports[0]):
        arguments.parser.error(f"--skip-list: {arguments.reports[0]} has no operations; run with --operation all")
    if not wanted:
        return _print(reports, arguments)
    with _named(arguments.reports):
        pages_made = {name: _page(name, reports, intersection=arguments.intersection) for name in wanted}
    return _hand_over({path: (WORDS[name], pages_made[name]) for name, path in wanted.items()})


def _print(reports: list[Report], arguments: argparse.Namespace) -> int:
    output = ReportOutput.of(arguments)
    for report in reports:
        output.conclude(report, head=opening(report, _cells(report), width()))
    return EXIT_CONFORMS


def _cells(report: Report) -> list[tuple[str, str]]:
    """Return the devices and dtypes of a report."""
    return list(dict.fromkeys((result.device, result.dtype) for result in report.results))


def write_badge(arguments: argparse.Namespace) -> int:
    """Write the badge of a report; return 4 if it cannot be written."""
    found = read_report(arguments.report)
    try:
        drawn = badge(found, arguments.label)
    except BadgeError as error:
        msg = f"{arguments.report}: {error}"
        raise BadgeError(msg) from error
    return _hand_over({arguments.output: ("badge", drawn)})


def _page(form: str, reports: list[Report], *, intersection: bool) -> str:
    if len(reports) == 1:
        return FORMATS[form](reports[0])
    runs = pages.side_by_side(reports, intersection=intersection)
    return pages.runs_page(runs) if form == "html" else pages.runs_markdown(runs)


def _hand_over(made: Mapping[str, tuple[str, str]]) -> int:
    """Write files and report them unless the output is the standard output; return 4 if one cannot be written."""
    notes = kept({path: one for path, one in made.items() if path != "-"})
    if "-" in made:
        write_text(made["-"][1])
    elif notes:
        write(notes)
    return EXIT_ENVIRONMENT if notes is None else EXIT_CONFORMS
