"""The page of one run."""

from __future__ import annotations

from typing import Any

from gradconform.compare.comparison import surroundings
from gradconform.report.device_faults import device_number_lines
from gradconform.report.page.areas import areas_by_place
from gradconform.report.page.findings import sections_of
from gradconform.report.page.headroom import INSTALL, headroom_by_place
from gradconform.report.page.rendering import render
from gradconform.report.page.rows import anchor, rows_of
from gradconform.report.page.timeline import Timelines
from gradconform.report.page.waived import entries_of
from gradconform.report.terminal import manifest_lines, number_lines, title, verdict
from gradconform.results import STATUSES, Report

#: Wider than any line: what a terminal wraps is one paragraph here.
_UNWRAPPED = 1_000_000

#: Of so many checks of a cause Markdown has the ids, of the others the count: the summary of a CI job has a limit.
_LISTED = 50


def report_page(report: Report) -> str:
    """Return one HTML page with all that the report says; it needs no other file and no network."""
    timelines = Timelines()
    rows = rows_of([report], timelines)
    plots = headroom_by_place(report.results)
    return render(
        "report.html.j2",
        **_common(report),
        rows=rows,
        statuses=[status for status in STATUSES if report.summary[status]],
        timelines=list(timelines.drawn.values()),
        plots=plots,
        install=INSTALL,
        anchor=anchor,
    )


def report_markdown(report: Report) -> str:
    """Return the report as Markdown, fit for the summary of a CI job: each cause once, with the checks it fails."""
    told = {(row.check, *row.place.rsplit(" ", 1)): row.told[0] for row in rows_of([report], Timelines())}
    return render("report.md.j2", **_common(report), told=told, listed=_LISTED)


def _common(report: Report) -> dict[str, Any]:
    return {
        "report": report,
        "title": title(report),
        "verdict": verdict(report),
        "tone": tone_of(report),
        "manifest": _text(manifest_lines(report, _UNWRAPPED)),
        "counts": {status: report.summary[status] for status in STATUSES},
        "areas": areas_by_place(report.results),
        "sections": sections_of(report),
        "numbers": [
            line.text for line in (*number_lines(report, _UNWRAPPED), *device_number_lines(report, _UNWRAPPED))
        ],
        "waivers": list(entries_of(report)),
        "surroundings": {name: values[0] for name, values in surroundings(report).items()},
    }


def tone_of(report: Report) -> str:
    """Return what colours a verdict: ``good``, ``warning`` or ``bad``."""
    tones = {"conforms": "good", "passed": "good", "conforms with waivers": "warning", "incomplete": "warning"}
    return tones.get(report.verdict, "bad")


def _text(lines: list[Any]) -> str:
    return " ".join(line.text for line in lines)
