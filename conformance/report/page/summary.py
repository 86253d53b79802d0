"""The report as a short Markdown summary of a CI job: at most :data:`MOST_LINES` lines, whatever failed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gradconform.report import sections, sentences
from gradconform.report.code_places import CodePlace, code_place, packaged_path
from gradconform.results import Report
from gradconform.text.counts import count

from .rendering import render

#: The most lines of a summary: a reader sees all of it without scrolling.
MOST_LINES = 40

#: The most causes in the table, the most of them after the first section of failures, and the most other lines.
_CAUSES, _OF_LATER, _OTHERS = 16, 4, 8

#: The most letters of a cause.
_LETTERS = 240


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A cause: its number of checks, their level, or why they were not judged, and the place in the target's code."""

    checks: int
    kind: str
    text: str
    place: CodePlace | None
    first: str


def report_summary(report: Report, folder: Path) -> str:
    """Return the verdict, the first causes with their places in the code, and the counts of everything else.

    Paths inside ``folder`` are relative to it.
    """
    found = sections.sections(report)
    failures = [section for section in found if section.causes and section.role in {"bad", "warning"}]
    rows: list[SummaryRow] = []
    for position, section in enumerate(failures):
        shown = min(_OF_LATER if position else _CAUSES, _CAUSES - len(rows))
        for cause in section.causes[:shown]:
            first = cause.smallest
            place = None if section.spares_target else code_place(report, first, folder)
            place = place and replace(place, file=packaged_path(place.file))
            rows.append(SummaryRow(len(cause.checks), section.kind or "MUST", _short(cause.text), place, first.check))
    left = sum(len(section.causes) for section in failures) - len(rows)
    others = [section.heading for section in found if section not in failures]
    shown_first = failures[0].causes[0].smallest if failures else None
    return render(
        "summary.md.j2",
        verdict=sentences.verdict(report),
        manifest=sentences.against_manifest(report),
        rows=rows,
        left=f"and {count(left, 'more cause')}" if left else "",
        others=others[:_OTHERS],
        more=f"and {count(len(others) - _OTHERS, 'more section')}" if len(others) > _OTHERS else "",
        again=sentences.command_again(report, shown_first) if shown_first else None,
    )


def _short(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]} …"
