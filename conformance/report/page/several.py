"""The page of several runs: implementations, or versions of one, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from gradconform.compare.comparison import Comparison, compare, surroundings
from gradconform.report.comparison import TOLD
from gradconform.report.lines import count
from gradconform.report.page.areas import Tally, tally
from gradconform.report.page.rendering import render
from gradconform.report.page.rows import Row, anchor, rows_of
from gradconform.report.page.single import tone_of
from gradconform.report.page.timeline import Timelines
from gradconform.report.terminal import title, verdict
from gradconform.results import STATUSES, Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One of the runs, with the letter that the page calls it; ``beside`` compares it with the first."""

    letter: str
    report: Report
    beside: Comparison | None

    @property
    def title(self) -> str:
        """The target's name and version."""
        return title(self.report)

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        return verdict(self.report)

    @property
    def tone(self) -> str:
        """What colours the verdict."""
        return tone_of(self.report)

    @property
    def counts(self) -> dict[str, int]:
        """How many results there are of each status that is met."""
        return {status: self.report.summary[status] for status in STATUSES if self.report.summary[status]}

    @property
    def told(self) -> str:
        """What changed from the first run to this one, in counts."""
        if self.beside is None:
            return "the others are compared with this one"
        counts = self.beside.counts
        return "; ".join(f"{heading}: {counts[name]}" for name, (heading, _) in TOLD.items() if counts[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """Several runs, the checks that they are looked at by, and what is different around them."""

    runs: tuple[Run, ...]
    rows: tuple[Row, ...]
    timelines: Timelines
    differences: tuple[tuple[str, tuple[Any, ...]], ...]


def side_by_side(reports: Sequence[Report], *, intersection: bool = False) -> SideBySide:
    """Put two runs or more beside each other; the first is what the others are compared with.

    With ``intersection`` only checks of which all have a result are looked at, and the contracts may differ. Raises
    :class:`~gradconform.compare.comparison.CompareError` as :func:`~gradconform.compare.comparison.compare` does.
    """
    first, *others = reports
    beside = [None, *(compare(first, other, intersection=intersection) for other in others)]
    timelines = Timelines()
    rows = [row for row in rows_of(reports, timelines) if not intersection or len(row.results) == len(reports)]
    around = surroundings(*reports).items()
    return SideBySide(
        runs=tuple(
            Run(letter=_letter(number), report=report, beside=comparison)
            for number, (report, comparison) in enumerate(zip(reports, beside, strict=True))
        ),
        rows=tuple(rows),
        timelines=timelines,
        differences=tuple((name, tuple(values)) for name, values in around if any(v != values[0] for v in values)),
    )


def _letter(number: int) -> str:
    return ascii_uppercase[number] if number < len(ascii_uppercase) else f"run {number + 1}"


def runs_page(runs: SideBySide) -> str:
    """Return one HTML page with the runs side by side; it needs no other file and no network."""
    statuses = [status for status in (*STATUSES, "absent") if any(status in row.statuses for row in runs.rows)]
    return render(
        "runs.html.j2",
        **_common(runs),
        statuses=statuses,
        timelines=list(runs.timelines.drawn.values()),
        anchor=anchor,
        changes=TOLD,
    )


def runs_markdown(runs: SideBySide) -> str:
    """Return the runs side by side as Markdown: verdicts, areas, and the checks that differ."""
    return render("runs.md.j2", **_common(runs))


def _common(runs: SideBySide) -> dict[str, Any]:
    differing = [row for row in runs.rows if row.differs]
    return {
        "title": " | ".join(run.title for run in runs.runs),
        "summary": f"{count(len(differing), 'check')} of {len(runs.rows)} came out differently",
        "runs": runs.runs,
        "rows": runs.rows,
        "differing": differing,
        "differences": runs.differences,
        "areas": _areas(runs.rows),
    }


def _areas(rows: Sequence[Row]) -> list[tuple[str, str, list[Tally]]]:
    """Return area, place and one tally per run."""
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row.area, row.place), []).append(row)
    return [(*key, [tally(*key, each) for each in _by_run(group)]) for key, group in sorted(grouped.items())]


def _by_run(rows: Sequence[Row]) -> list[list[Any]]:
    return [
        [told.result for told in each if told is not None] for each in zip(*(row.told for row in rows), strict=True)
    ]
