"""The lines on waivers: which file, what was expected to fail and did, and what was expected to and did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradconform.report.lines import Line, Role, count, heading, wrapped
from gradconform.results import Report, Result

#: Of so many checks the ids are written out, of more the count alone.
_NAMED = 4


def named_file(report: Report, width: int) -> list[Line]:
    """Return which waiver file a run goes by."""
    if report.waivers is None:
        return []
    entries, elsewhere = len(report.waivers["entries"]), len(report.waivers["elsewhere"])
    aside = f", {elsewhere} of them for other adapters, versions of torch, devices or dtypes" if elsewhere else ""
    told = f"waivers   {report.waivers['file']}: {entries} {'entry' if entries == 1 else 'entries'}{aside}"
    return wrapped(told, width, hanging=10)


def expected_lines(report: Report, width: int) -> list[Line]:
    """Return what was waived, by waiver, and what passed although it is waived."""
    waived = [result for result in report.results if result.status == "waived"]
    passed = [result for result in report.results if result.status == "unexpectedly_passed"]
    aside = "" if report.strict else " (told, but only --strict lets them decide)"
    role: Role = "bad" if report.strict else "warning"
    return [
        *_section(f"waived: {count(len(waived), 'result')}, expected to fail", waived, width, "heading"),
        *_section(f"passed, and waived: {count(len(passed), 'result')}{aside}", passed, width, role),
    ]


def _section(title: str, results: Sequence[Result], width: int, role: Role) -> list[Line]:
    if not results:
        return []
    lines = [heading(title, width, role)]
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(_why(result.waiver or {}), []).append(result)
    for why, group in sorted(groups.items(), key=lambda one: -len(one[1])):
        ids = list(dict.fromkeys(result.check for result in group))
        shown = ", ".join(ids[:_NAMED]) + (f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else "")
        lines += wrapped(f"{len(group):>5}  {why}: {shown}", width, hanging=7)
    return [*lines, Line()]


def _why(waiver: Mapping[str, Any]) -> str:
    return "{reason} ({issue}, {owner}, until {expires})".format(**waiver)


def idle_lines(report: Report, width: int) -> list[Line]:
    """Return which waivers met no result in a whole run of profile ``full``."""
    return [
        line
        for position in report.idle_waivers
        for line in wrapped(_idle(report, position), width, hanging=4, role="bad")
    ]


def _idle(report: Report, position: int) -> str:
    waivers: Mapping[str, Any] = report.waivers or {}
    check = waivers["entries"][position]["check"]
    return (
        f"{waivers['file']}: entry {position + 1} ({check}) met no result that was judged in this whole run; remove it"
    )
