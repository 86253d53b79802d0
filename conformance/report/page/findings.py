"""What did not pass, sorted for a page: by section, and there by cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradconform.report.causes import Cause, by_cause
from gradconform.report.lines import count
from gradconform.results import Report, Result


@dataclass(frozen=True, slots=True)
class Section:
    """Results that did not pass in one way: a heading, what to know of them, and their causes."""

    title: str
    note: str
    causes: tuple[Cause, ...]


def sections_of(report: Report) -> list[Section]:
    """Return the sections that have something, in the order in which a reader wants them."""
    return [
        Section(f"{title}: {_counted(results, causes)}", note, tuple(causes))
        for title, note, results in _sorted_out(report)
        if results
        for causes in [by_cause(results)]
    ]


def _sorted_out(report: Report) -> Iterator[tuple[str, str, list[Result]]]:
    failed = [result for result in report.failures if result.status == "failed"]
    errors = [result for result in report.failures if result.status == "error"]
    aside = "" if report.strict else "Told in full; only --strict lets them decide."
    spared = f"They are not charged to {report.target['name']}, of which these checks say nothing."
    yield "device faults", spared, [result for result in errors if result.kind == "device"]
    yield "could not be judged", "", [result for result in errors if result.kind != "device"]
    yield "failed MUST", "", [result for result in failed if result.level == "MUST"]
    yield "failed SHOULD", aside, [result for result in failed if result.level != "MUST"]
    yield "waived", "Expected to fail, and failed.", [r for r in report.results if r.status == "waived"]
    yield (
        "passed, and waived",
        "Expected to fail; remove the waiver." if report.strict else f"Expected to fail. {aside}",
        [result for result in report.results if result.status == "unexpectedly_passed"],
    )
    yield (
        "unsupported",
        "Neither passed nor failed: the target does not claim what they ask, or plain autograd cannot do it.",
        [result for result in report.results if result.status == "unsupported"],
    )


def _counted(results: list[Result], causes: list[Cause]) -> str:
    checks = len({result.check for result in results})
    by = f" by {count(len(causes), 'cause')}" if len(causes) < checks else ""
    return f"{count(checks, 'check')}{by}"
