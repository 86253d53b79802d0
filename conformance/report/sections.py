"""The contents of a report, computed once; terminal, HTML page, Markdown and pytest summary only lay it out.

A section is a function from a report to a :class:`Section`, listed in :data:`SECTIONS`; every layout shows it. Failures
are grouped by cause: one defect fails many checks, and readers look for the defects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from gradconform.coverage import NOTHING, WITHHELD
from gradconform.results import Report, Result
from gradconform.run.source import SectionItem as Item
from gradconform.run.sources import FOLDER, SOURCES
from gradconform.text.counts import count

from .by_cause import FailureGroup, by_cause
from .device_verdict import is_of_devices, standing_of_devices
from .lines import Line, Role
from .single_mistakes import causes_of
from .to_fix import Culprit, culprits

#: Reasons for results without information that a short report shows.
_BRIEF = 3

#: The most letters of a message in a section line; the report has the whole message.
_LETTERS = 400

#: The most check ids that a waiver's line lists; above this, it has only the count.
_NAMED = 4

#: The statuses of a check that unmodified torch fails.
_WRONG = {"failed", "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One topic of a run's report: a ``heading`` and its contents.

    ``causes`` group the section's results. ``items`` summarise them for a terminal, or hold other information.
    ``spares_target``: the causes do not accuse the target, so checks are counted by area and none is listed. ``brief``
    is the number of items in a short report, None for all. ``kind`` labels the causes in a list with others, in a word
    or two; empty for a failed MUST.
    """

    heading: str
    role: Role = "heading"
    note: str = ""
    causes: tuple[FailureGroup, ...] = ()
    items: tuple[Item, ...] = ()
    spares_target: bool = False
    brief: int | None = None
    kind: str = ""


def sections(report: Report) -> list[Section]:
    """Return the sections that have contents, in reading order."""
    found = (one for section in SECTIONS for one in _several(section(report)))
    return [section for section in found if section.causes or section.items]


def _several(found: Section | Iterable[Section]) -> Iterable[Section]:
    return [found] if isinstance(found, Section) else found


def _devices(report: Report) -> Section:
    found = standing_of_devices(report) if is_of_devices(report) else []
    right, open_ones = sum(one.right is True for one in found), sum(one.right is None for one in found)
    parts = [f"{right} of {len(found)} right"] if right or open_ones < len(found) else []
    parts += [f"{open_ones} without a verdict"] if open_ones else []
    role: Role = "bad" if right + open_ones < len(found) else "warning" if open_ones else "heading"
    items = _texts(one.line for one in found)
    return Section(heading=f"devices: {', '.join(parts)}", role=role, items=items)


def _texts(lines: Iterable[Line]) -> tuple[Item, ...]:
    return tuple(Item(text=line.text) for line in lines)


def _device_faults(report: Report) -> Section:
    causes = tuple(by_cause(result for result in _with_status(report.failures, "error") if result.kind == "device"))
    note = f"They say nothing about {report.target['name']}."
    heading = f"device faults: {_counted(causes)}"
    return Section(heading=heading, role="bad", note=note, causes=causes, spares_target=True, kind="device")


def _not_judged(report: Report) -> Section:
    causes = tuple(by_cause(result for result in _with_status(report.failures, "error") if result.kind != "device"))
    return Section(heading=f"could not be judged: {_counted(causes)}", role="bad", causes=causes, kind="not judged")


def _failed_must(report: Report) -> Section:
    causes = tuple(causes_of(_with_status(report.failures, "failed"), ["MUST"]))
    return Section(heading=f"failed MUST: {_counted(causes)}", role="bad", causes=causes)


def _failed_should(report: Report) -> Section:
    causes = tuple(causes_of(_with_status(report.failures, "failed"), ["SHOULD"]))
    listed = {result.check for group in causes for result in group.results}
    failed = {result.check for result in report.failures if (result.status, result.level) == ("failed", "SHOULD")}
    others = f", {len(failed - listed)} more by causes above" if failed - listed else ""
    heading = f"failed SHOULD{_aside(report)}: {_counted(causes)}{others}"
    return Section(heading=heading, role="bad" if report.strict else "warning", causes=causes, kind="SHOULD")


def _waived(report: Report) -> Section:
    results = _with_status(report.results, "waived")
    heading = f"waived: {count(len(results), 'result')}, expected to fail"
    return Section(heading=heading, causes=tuple(by_cause(results)), items=_by_waiver(results))


def _passed_and_waived(report: Report) -> Section:
    results = _with_status(report.results, "unexpectedly_passed")
    return Section(
        heading=f"passed although waived: {count(len(results), 'result')}{_aside(report)}",
        role="bad" if report.strict else "warning",
        note="Expected to fail; remove the waiver." if report.strict else "Expected to fail.",
        causes=tuple(by_cause(results)),
        items=_by_waiver(results),
    )


#: Kinds of unsupported results that have their own section.
_LISTED = frozenset({NOTHING, WITHHELD})


def _unsupported(report: Report) -> Section:
    results = [result for result in _with_status(report.results, "unsupported") if result.kind not in _LISTED]
    return Section(
        heading=f"unsupported: {count(len(results), 'check')}, neither passed nor failed",
        note="The target does not claim or support them, or plain autograd cannot run them.",
        causes=tuple(by_cause(results)),
        items=(*_by_claim(results), *_by_message(result for result in results if not result.unclaimed)),
        brief=_BRIEF,
    )


def _withheld(report: Report) -> Section:
    results = [result for result in report if result.kind == WITHHELD]
    heading = f"withheld: {count(len(results), 'check')} on a skip list"
    return Section(
        heading=heading, role="warning", causes=tuple(by_cause(results)), items=_by_message(results), brief=_BRIEF
    )


#: The most operations or checks in the same state to name; above this, only the count is printed.
_NAMED_ALIKE = 12


def _right_split(report: Report) -> Section:
    """Return which failures of unmodified torch the right split fixes, and who owns the others."""
    lost = [result for result in report if result.as_it_is in _WRONG]
    gone = [result.check for result in lost if result.status == "passed"]
    runtimes = [result.check for result in report if result.of_runtime]
    own = [result.check for result in report if result.of_runtime is False]
    kinds = (
        (gone, "wrong with torch, right with the right split"),
        (runtimes, "also wrong with plain autograd as I and W, a fault of torch's runtime"),
        (own, "wrong with the right split, right with plain autograd as I and W"),
    )
    described = any(result.as_it_is is not None for result in report)
    items = (
        Item(text=f"{what}: {_some(checks, _NAMED_ALIKE)}", number=len(checks)) for checks, what in kinds if checks
    )
    heading = f"the right split in torch: {len(gone)} of {count(len(lost), 'failure')} gone"
    return Section(heading=heading, items=tuple(items) if described else ())


def _of_sources(report: Report) -> Iterator[Section]:
    """Yield the sections of each source of checks that has results."""
    for name, source in SOURCES.items():
        if source.has_sections and any(one.check.startswith(f"{source.area}.") for one in report):
            for own in import_module(f"{FOLDER}.{name}.sections").sections(report):
                yield Section(heading=own.heading, items=own.items)


def _imprecise(report: Report) -> Section:
    """Return the largest errors in eps of operations that are not wrong, the worst first."""
    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for result in report:
        for operation, eps in (result.imprecise or {}).items():
            place = operation, f"{result.device.partition(':')[0]} in {result.dtype}"
            worst[place] = max(worst.get(place, (0.0, "")), (eps, result.check))
    ranked = sorted(worst.items(), key=lambda one: (-one[1][0], one[0]))
    items = [Item(text=f"{name} on {where}: {eps:.0f} eps ({check})") for (name, where), (eps, check) in ranked]
    heading = f"imprecise: {count(len(items), 'operation')}, not wrong"
    return Section(heading=heading, items=tuple(items), brief=_NAMED_ALIKE)


def to_fix(report: Report) -> Section:
    """Return the operations to fix on the report's devices, the worst first."""
    found = culprits(report)
    several = count(len(found), "operation")
    items = tuple(Item(text=_line_to_fix(number, one)) for number, one in enumerate(found, start=1))
    return Section(heading=f"fix on the device: {several}, worst first", role="bad", items=items)


def _line_to_fix(number: int, one: Culprit) -> str:
    size = "" if one.size is None else f"; wrong from {one.size:,} elements"
    passes = f"; {one.passes} passes" if one.passes else ""
    where = ", ".join(one.places)
    return f"{number}. {one.name}: {count(one.checks, 'check')} on {where}{size}{passes}; {one.text}"


#: All sections on results, in order; every layout shows a section that is added here.
SECTIONS: tuple[Callable[[Report], Section | Iterable[Section]], ...] = (
    _devices, _device_faults, _not_judged, _failed_must, _failed_should, _waived, _passed_and_waived, _unsupported,
    _withheld, _right_split, _of_sources, _imprecise, to_fix,
)  # fmt: skip


def _with_status(results: Iterable[Result], status: str) -> list[Result]:
    return [result for result in results if result.status == status]


def _aside(report: Report) -> str:
    return "" if report.strict else " (they decide only with --strict)"


def _counted(causes: Iterable[FailureGroup]) -> str:
    """Return the number of checks of the causes, of results if there are more, and of causes if there are fewer."""
    groups = list(causes)
    results = {result.place for group in groups for result in group.results}
    checks = len({place.check for place in results})
    times = f", {len(results)} results" if len(results) > checks else ""
    by = f", {count(len(groups), 'cause')}" if len(groups) < checks else ""
    return f"{count(checks, 'check')}{times}{by}"


def _by_message(results: Iterable[Result]) -> tuple[Item, ...]:
    """Return each message with its number of results, the most frequent first."""
    messages = Counter(" ".join(result.message.split()) for result in results).most_common()
    return tuple(
        Item(text=message if len(message) <= _LETTERS else f"{message[:_LETTERS]} …", number=number)
        for message, number in messages
    )


def _by_claim(results: Iterable[Result]) -> tuple[Item, ...]:
    """Return each claim that checks lack with their number, the most frequent first; a check may lack several."""
    lacking = Counter(claim for result in results for claim in result.unclaimed)
    alone = Counter(claim for result in results if len(result.unclaimed) == 1 for claim in result.unclaimed)
    return tuple(
        Item(text=f"not claimed: {claim}{_needed_alone(alone[claim], number)}", number=number)
        for claim, number in lacking.most_common()
    )


def _needed_alone(alone: int, number: int) -> str:
    """Return how many of the checks that lack a claim lack no other one; nothing if all do."""
    if alone == number:
        return ""
    return f"; {alone or 'none'} {'need' if alone > 1 else 'needs'} only this"


def _by_waiver(results: Iterable[Result]) -> tuple[Item, ...]:
    """Return the results that each waiver matched, the one with most results first."""
    groups: dict[str, list[str]] = {}
    for result in results:
        why = "{reason} ({issue}, {owner}, until {expires})".format(**result.waiver or {})
        groups.setdefault(why, []).append(result.check)
    found = sorted(groups.items(), key=lambda one: -len(one[1]))
    return tuple(Item(text=f"{why}: {_some(dict.fromkeys(checks))}", number=len(checks)) for why, checks in found)


def _some(checks: Iterable[str], shown: int = _NAMED) -> str:
    ids = list(checks)
    return ", ".join(ids[:shown]) + (f" and {len(ids) - shown} more" if len(ids) > shown else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the waiver file as text. ``met`` is its number of results, or the reason why it has none."""

    check: str
    verdict: str
    reason: str
    issue: str
    owner: str
    expires: str
    when: str
    met: str


def waivers(report: Report) -> list[Entry]:
    """Return the entries of the waiver file in order; none if the run had no such file."""
    entries = report.waivers["entries"] if report.waivers else ()
    return [_entry(report, position, entry) for position, entry in enumerate(entries)]


def _entry(report: Report, position: int, entry: Mapping[str, Any]) -> Entry:
    return Entry(
        **{name: str(entry[name]) for name in ("check", "reason", "issue", "owner", "expires")},
        verdict=", ".join(entry["verdict"]),
        when=", ".join(f"{name} {value}" for name, value in entry["when"].items()) or "everywhere",
        met=_met(report, position, entry),
    )


def _met(report: Report, position: int, entry: Mapping[str, Any]) -> str:
    if position in (report.waivers or {})["elsewhere"]:
        return "for another adapter, torch, device or dtype"
    met = [result.status for result in report.results if result.waiver == entry]
    if not met:
        return "nothing; remove it" if position in report.unused_waivers else "nothing"
    waived, passed = met.count("waived"), met.count("unexpectedly_passed")
    parts = [(waived, "waived"), (passed, "passed"), (len(met) - waived - passed, "still failed")]
    return ", ".join(f"{number} {what}" for number, what in parts if number)


def waiver_file(report: Report) -> str:
    """Return the waiver file of a run; empty if it had none."""
    if report.waivers is None:
        return ""
    entries, inapplicable = len(report.waivers["entries"]), len(report.waivers["elsewhere"])
    aside = f", {inapplicable} of them for other adapters, versions of torch, devices or dtypes" if inapplicable else ""
    return f"{report.waivers['file']}: {entries} {'entry' if entries == 1 else 'entries'}{aside}"


def unused_waivers(report: Report) -> list[str]:
    """Return the waivers that matched no result in a whole run of profile ``full``."""
    waivers: Mapping[str, Any] = report.waivers or {}
    return [
        f"{waivers['file']}: entry {position + 1} ({waivers['entries'][position]['check']}) matched no result of this "
        "whole run; remove it"
        for position in report.unused_waivers
    ]
