"""HTML and Markdown pages on one run, or on several implementations or versions side by side."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from string import ascii_uppercase
from typing import Any

from gradconform.reading.comparison import Comparison, compare, surroundings
from gradconform.report import probed_devices, sections, sentences
from gradconform.report.comparison import HEADINGS
from gradconform.report.device_verdict import is_of_devices, standing_of_devices
from gradconform.report.lines import Line
from gradconform.results import STATUSES, Report, Result
from gradconform.text.counts import count

from .rendering import render
from .rows import Row, Tally, anchor, areas_by_cell, cell_of, reported_result, rows_of, tallies
from .topics import by_topic, commands_again, is_shown_once, listing_of

#: Markdown lists a cause's check ids up to this number, else only the count: CI job summaries are limited.
_LISTED = 50


def report_page(report: Report) -> str:
    """Return the report as one HTML page, which needs no other file and no network."""
    rows = rows_of([report])
    reported = _of_one(report)
    reported["sections"] = _below(reported["headline"], reported["sections"])
    return render("report.html.j2", **reported, **_listed(rows), plots=error_ranges_by_cell(report.results))


def _below(headline: Sequence[Line], found: Sequence[sections.Section]) -> list[sections.Section]:
    """Return the sections without the lines that are in the headline; empty sections are dropped."""
    in_headline = {line.text for line in headline}
    left = [replace(one, items=tuple(item for item in one.items if item.text not in in_headline)) for one in found]
    return [one for one in left if one.causes or one.items]


def _listed(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the values for the list of all checks."""
    statuses = [status for status in (*STATUSES, "absent") if any(status in row.statuses for row in rows)]
    return {
        "rows": rows,
        "listing": listing_of(rows),
        "several": len({row.cell for row in rows}) > 1,
        "again": commands_again(rows),
        "is_shown_once": is_shown_once,
        "statuses": statuses,
        "anchor": anchor,
        "by_topic": by_topic,
    }


def report_markdown(report: Report) -> str:
    """Return the report as Markdown for a CI job summary: each cause once, with its failed checks."""
    return render("report.md.j2", **_of_one(report), listed=_LISTED)


def _of_one(report: Report) -> dict[str, Any]:
    return {
        "report": report,
        "title": _title(report),
        "headline": _headline(report),
        "made": sentences.made(report),
        "manifest": sentences.against_manifest(report),
        "numbers": (*sentences.torch_untested(report), *sentences.numerics(report), *sentences.numbers(report)),
        "sections": sections.sections(report),
        "verified": sentences.verified_causes(report),
        "reported": partial(reported_result, report),
        "devices": probed_devices.devices(report),
        "left_out": probed_devices.left_out(report),
        "waivers": sections.waivers(report),
        "counts": {status: report.summary[status] for status in STATUSES},
        "areas": areas_by_cell(report.results),
        "surroundings": {name: values[0] for name, values in surroundings(report).items()},
    }


def _title(report: Report) -> str:
    if not is_of_devices(report):
        return sentences.title(report)
    names = dict.fromkeys(result.device for result in report)
    return f"{', '.join(names) or 'no device'}, by {sentences.title(report)}"


def _headline(report: Report) -> list[Line]:
    """Return the verdict, or the verdict on each device and the operations to fix there."""
    if not is_of_devices(report):
        return [Line(sentences.verdict(report), sentences.tone(report))]
    return [
        *(one.line for one in standing_of_devices(report)),
        *(Line(item.text) for item in sections.to_fix(report).items),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One of the runs, its letter on the page, and the page's text on it.

    ``compared`` holds the changes from the first run and ``reported`` the same as counts; ``counts`` has each status
    present.
    """

    letter: str
    report: Report
    compared: Comparison | None
    title: str
    verdict: str
    tone: str
    counts: dict[str, int]
    made: tuple[str, ...]
    reported: str


def _run(letter: str, report: Report, compared: Comparison | None) -> Run:
    changed = {} if compared is None else compared.counts
    reported = "; ".join(f"{heading}: {changed[name]}" for name, (heading, _) in HEADINGS.items() if changed.get(name))
    return Run(
        letter=letter,
        report=report,
        compared=compared,
        title=sentences.title(report),
        verdict=sentences.verdict(report),
        tone=sentences.tone(report),
        counts={status: report.summary[status] for status in STATUSES if report.summary[status]},
        made=sentences.made(report),
        reported=reported if compared else "the others are compared with this one",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Several runs, the checks compared, and the differences between their environments."""

    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    differences: tuple[tuple[str, tuple[Any, ...]], ...]


def side_by_side(reports: Sequence[Report], *, intersection: bool = False) -> SideBySide:
    """Return two or more runs side by side; all others are compared with the first.

    With ``intersection``, only checks with a result in every run are compared, and the contracts may differ. Raises
    :class:`~gradconform.reading.comparison.CompareError` as :func:`~gradconform.reading.comparison.compare` does.
    """
    first, *others = reports
    compared = [None, *(compare(first, other, intersection=intersection) for other in others)]
    rows = [row for row in rows_of(reports) if not intersection or len(row.results) == len(reports)]
    around = surroundings(*reports).items()
    return SideBySide(
        runs=tuple(
            _run(_letter(number), report, comparison)
            for number, (report, comparison) in enumerate(zip(reports, compared, strict=True))
        ),
        rows=tuple(rows),
        differences=tuple((name, tuple(values)) for name, values in around if any(v != values[0] for v in values)),
    )


def _letter(number: int) -> str:
    return ascii_uppercase[number] if number < len(ascii_uppercase) else f"run {number + 1}"


def runs_page(runs: SideBySide) -> str:
    """Return one HTML page with the runs side by side; it needs no other file and no network."""
    return render("runs.html.j2", **_of_several(runs), **_listed(runs.rows), changes=HEADINGS)


def runs_markdown(runs: SideBySide) -> str:
    """Return the runs side by side as Markdown: verdicts, areas, and the checks that differ."""
    return render("runs.md.j2", **_of_several(runs))


def _of_several(runs: SideBySide) -> dict[str, Any]:
    differing = [row for row in runs.rows if row.differs]
    return {
        "title": " | ".join(run.title for run in runs.runs),
        "summary": f"{count(len(differing), 'check')} of {len(runs.rows)} came out differently",
        "runs": runs.runs,
        "differing": differing,
        "differences": runs.differences,
        "areas": _areas(runs),
    }


def _areas(runs: SideBySide) -> list[tuple[str, str, list[Tally]]]:
    """Return area, device and dtype, and one tally per run."""
    columns = zip(*(row.reported for row in runs.rows), strict=True)
    each = [tallies(reported.result for reported in column if reported) for column in columns]
    keys = sorted({key for found in each for key in found})
    return [(*key, [found.get(key, Tally(*key)) for found in each]) for key in keys]


#: Upper ends of the ranges after the first one, which holds checks that are bit-equal to plain autograd.
_ENDS = (0.01, 0.1, 1.0, 10.0, 1e3, 1e6)
_NAMES = ("0", "to 0.01", "to 0.1", "to 1", "to 10", "to 1e3", "to 1e6", "above")

#: The statuses that a range separates.
_SERIES = ("passed", "failed", "otherwise")


@dataclass(frozen=True, slots=True)
class Range:
    """The checks whose largest error is in one range, by status; ``bound``: the last range that may pass."""

    name: str
    counts: Mapping[str, int]
    bound: bool


@dataclass(frozen=True, slots=True)
class ErrorRanges:
    """All ranges on one device in one dtype; ``series`` are the statuses present, ``most`` is the longest bar."""

    cell: str
    series: tuple[str, ...]
    ranges: tuple[Range, ...]
    most: int


def error_ranges_by_cell(results: Sequence[Result]) -> list[ErrorRanges]:
    """Return the checks counted by their largest error, for each device and dtype on which the run compared values."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        if result.error_ratio is not None:
            grouped.setdefault(cell_of(result), []).append(result)
    return [_error_ranges(cell, found) for cell, found in grouped.items()]


def _error_ranges(cell: str, results: Sequence[Result]) -> ErrorRanges:
    counts = Counter((_range(result), _series(result)) for result in results)
    series = tuple(name for name in _SERIES if any(one == name for _, one in counts))
    ranges = tuple(
        Range(name, {one: counts[position, one] for one in series}, bound=name == "to 1")
        for position, name in enumerate(_NAMES)
    )
    return ErrorRanges(cell, series, ranges, max(counts.values()))


def _range(result: Result) -> int:
    return 0 if not result.error_ratio else 1 + bisect_left(_ENDS, result.error_ratio)


def _series(result: Result) -> str:
    return result.status if result.status in _SERIES else "otherwise"
