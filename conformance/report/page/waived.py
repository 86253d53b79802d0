"""The waivers of a run, with what each of them met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradconform.results import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the waiver file, as text. ``met`` says how many results it is for, or why for none."""

    check: str
    verdict: str
    reason: str
    issue: str
    owner: str
    expires: str
    when: str
    met: str


def entries_of(report: Report) -> Iterator[Entry]:
    """Yield the entries of the waiver file in its order; none where the run had no such file."""
    if report.waivers is None:
        return
    for position, entry in enumerate(report.waivers["entries"]):
        texts = {name: str(entry[name]) for name in ("check", "reason", "issue", "owner", "expires")}
        yield Entry(
            **texts,
            verdict=", ".join(entry["verdict"]),
            when=", ".join(f"{name} {value}" for name, value in entry["when"].items()) or "everywhere",
            met=_met(report, position),
        )


def _met(report: Report, position: int) -> str:
    waivers = report.waivers or {}
    if position in waivers["elsewhere"]:
        return "for another adapter, torch, device or dtype"
    met = [result for result in report.results if result.waiver == waivers["entries"][position]]
    if not met:
        return "nothing; remove it" if position in report.idle_waivers else "nothing"
    waived = sum(result.status == "waived" for result in met)
    passed = sum(result.status == "unexpectedly_passed" for result in met)
    parts = [(waived, "waived"), (passed, "passed"), (len(met) - waived - passed, "failed all the same")]
    return ", ".join(f"{number} {what}" for number, what in parts if number)
