"""A report as lines of text: the facts before the run, the failures with reasons, and the verdict last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradconform.results import STATUSES, Report, Result
from gradconform.text.counts import count
from gradconform.version import KIT_VERSION

from .by_cause import FailureGroup
from .causes import cause_head, cause_line, cause_lines
from .detail import USUAL, Detail
from .lines import Line, Role, command_lines, heading, listed, wrapped, wrapped_each
from .probed_devices import Device, devices, left_out
from .sections import Section, sections, unused_waivers, waiver_file
from .sentences import (
    against_manifest,
    command_again,
    command_of_script,
    not_watched,
    numbers,
    numerics,
    probed_before,
    shard_name,
    title,
    tone,
    torch_untested,
    verdict,
    verified_causes,
)

#: The most areas of the contract to name, with the number of their checks that a device fault left without a verdict.
_AREAS = 12


#: Causes with less than this share of the largest cause's checks have one line, and this many are shown.
_FEW, _BRIEF = 0.25, 2


def opening(report: Report, cells: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Return the target, its devices and the oracle. ``cells`` are the devices and dtypes of the run."""
    file, text = report.target.get("file"), report.target["text"]
    named = "" if text == report.target["name"] else f", named as {text}"
    where = ", ".join(f"{_device(device)} {dtype}" for device, dtype in cells)
    of_contract = report.with_contract or not report.extra
    probed = ", unclaimed capabilities are tried too" if report.profile == "full" and of_contract else ""
    waived = waiver_file(report)
    return [
        *wrapped(f"gradconform {KIT_VERSION} judges {title(report)}{named}", width, hanging=4, role="heading"),
        *([Line(f"file      {file}")] if file else []),
        *wrapped_each((f"on        {one}" for one in report.extra), width, hanging=10),
        *(wrapped(f"waivers   {waived}", width, hanging=10) if waived else []),
        *wrapped(
            f"{_scope(report)}{probed}: {_planned(report)} on {where}, seed {report.seed}",
            width,
            hanging=10,
        ),
        *wrapped_each((f"numerics  {one}" for one in numerics(report)), width, hanging=10),
        *wrapped_each((f"probe     {one}" for one in probed_before(report)), width, hanging=10),
        *wrapped_each((f"unwatched {one}" for one in not_watched(report)), width, hanging=10),
        Line(),
    ]


def _device(name: str) -> str:
    """Return a device's name; torch accepts an index for the CPU, but it has no meaning."""
    return f"{name} (the CPU)" if name.startswith("cpu:") else name


def _planned(report: Report) -> str:
    whole = report.planned == report.manifest
    checks = count(report.planned, "check") if whole else f"{report.planned} of {report.manifest} checks"
    return f"{shard_name(report)}, {checks}" if report.shard else checks


def _scope(report: Report) -> str:
    return f"checks    {report.scope}" if report.extra else f"contract  {report.contract}, profile {report.profile}"


def tally_line(area: str, results: Sequence[Result], planned: int, more: str = "") -> Line:
    """Return one line on an area: how many of its checks have a result, their statuses, and the text ``more``."""
    counts = Counter(result.status for result in results)
    shown = ", ".join(f"{counts[status]} {status.replace('_', ' ')}" for status in STATUSES if counts[status])
    decided = any(result.decisive for result in results)
    role: Role = "bad" if decided else "warning" if counts["failed"] else "plain"
    return Line(f"{area}  {len(results):>4} of {f'{planned}  ':<5}{shown}{more}", role)


def closing(
    report: Report, width: int, stopped: str | None = None, detail: Detail = USUAL, notes: Sequence[str] = ()
) -> list[Line]:
    """Return the lines after a run; the verdict is the last line.

    ``stopped`` is the reason for an early end; ``notes`` name other outputs, such as files. The verdict is one line of
    any length, so that the last line of a log is complete.
    """
    last = Line(verdict(report), tone(report))
    if detail.verdict_alone:
        return [last]
    found = sections(report)
    short = _one_bug(found) and not detail.ids
    around = [] if detail.quiet else [Line(), *_section_lines(found, report, width, detail, short=short)]
    around = _for_last_blank(around, _verified(report, width)) if short and around else around
    return [
        *around,
        *([] if short and not detail.quiet else _summary(found, report, width, detail)),
        *([] if detail.quiet else _around_the_verdict(report, width, short=short)),
        *(wrapped(f"The run was stopped: {stopped}", width, role="warning") if stopped else []),
        *wrapped_each(notes, width, hanging=4),
        *wrapped_each(unused_waivers(report), width, hanging=4, role="bad"),
        *wrapped_each(torch_untested(report), width, hanging=4, role="warning"),
        *wrapped(against_manifest(report), width, role="plain" if report.complete else "warning"),
        last,
    ]


def _verified(report: Report, width: int) -> list[Line]:
    return wrapped_each(verified_causes(report), width, hanging=4, role="faint")


def _for_last_blank(lines: list[Line], others: Sequence[Line]) -> list[Line]:
    """Return lines with others in place of the last blank one: a report on a single bug gets only forty lines."""
    place = max(number for number, line in enumerate(lines) if not line.text)
    return [*lines[:place], *others, *lines[place + 1 :]] if others else lines


def _one_bug(found: Sequence[Section]) -> bool:
    """Return whether a report may show a single bug: one cause, or one whose fix removes others.

    Such a report fits a screen: text not on the bug is counted, or shown only with -v.
    """
    causes = [cause for section in found for cause in _causes_of(section)]
    return len(causes) == 1 or any(cause.gone for cause in causes)


def _around_the_verdict(report: Report, width: int, *, short: bool) -> list[Line]:
    on_the_cpu = all(result.device == "cpu" for result in report)  # for a device, these sections name the oracle
    return [
        *([] if short else _verified(report, width)),
        *_preflights(devices(report), width),
        *listed("found but not used", left_out(report), width),
        *(() if short and on_the_cpu else wrapped_each(numbers(report), width, role="faint")),
    ]


def _section_lines(found: Sequence[Section], report: Report, width: int, detail: Detail, *, short: bool) -> list[Line]:
    """Return the sections, with causes numbered across them. ``short``: sections of items take one line each."""
    lines: list[Line] = []
    number = 1
    most = max((len(cause.checks) for section in found for cause in _causes_of(section)), default=0)
    for section in found:
        numbered = list(enumerate(_causes_of(section), number))
        if short and section.items and section.brief:
            lines += wrapped(f"{section.heading}; -v says why", width, hanging=4)
            continue
        if short:
            lines += _of_one_bug(section, numbered, report, width, detail, most=most)
        else:
            lines += _section(section, numbered, report, width, detail)
        number += len(numbered)
    return lines


def _causes_of(section: Section) -> tuple[FailureGroup, ...]:
    """Return the causes to print as such; a section with items summarises its causes in these."""
    return () if section.items else section.causes


def _section(
    section: Section, numbered: Sequence[tuple[int, FailureGroup]], report: Report, width: int, detail: Detail
) -> list[Line]:
    """Return the items of a section, or its note and causes if it has no items."""
    lines = [heading(section.heading, width, section.role)]
    if section.items:
        return [*lines, *_items(section, width, detail), Line()]
    lines += [*wrapped(section.note, width), Line()]
    shown = [(number, cause) for number, cause in numbered if detail.causes is None or number <= detail.causes]
    for number, cause in shown:
        write_lines = _fault if section.spares_target else _cause
        lines += [*write_lines(number, cause, report, width, detail), Line()]
    left = len(numbered) - len(shown)
    more = count(left, "more cause" if shown else "cause")
    return [
        *lines,
        *(
            [Line(f"{more} {'is' if left == 1 else 'are'} in the summary; -v shows each", "faint"), Line()]
            if left
            else []
        ),
    ]


def _of_one_bug(  # noqa: PLR0913 (as _section, with the largest cause)
    section: Section,
    numbered: Sequence[tuple[int, FailureGroup]],
    report: Report,
    width: int,
    detail: Detail,
    *,
    most: int,
) -> list[Line]:
    """Return a section in which causes with few checks, compared with ``most``, take one line each."""
    full = [(number, cause) for number, cause in numbered if len(cause.checks) >= _FEW * most]
    brief = [
        cause_line(number, cause, width, section.kind) for number, cause in numbered if (number, cause) not in full
    ]
    lines = _section(section, full, report, width, detail) if full or not brief else []
    left = len(brief) - _BRIEF
    more = [Line(f"and {count(left, 'more cause')}; -v shows each", "faint")] if left > 0 else []
    # A single bug gets only forty lines, so the blank line follows them.
    return [*lines[:-1], *brief[:_BRIEF], *more, Line()] if brief else lines


def _items(section: Section, width: int, detail: Detail) -> list[Line]:
    lines: list[Line] = []
    shown = section.items if detail.ids else section.items[: section.brief]
    for item in shown:
        lead, hanging = ("  ", 4) if item.number is None else (f"{item.number:>5}  ", 7)
        lines += wrapped(lead + item.text, width, hanging=hanging)
    left = len(section.items) - len(shown)
    return lines + ([Line(f"       and {count(left, 'more reason')}; -v shows them", "faint")] if left else [])


def _summary(found: Sequence[Section], report: Report, width: int, detail: Detail) -> list[Line]:
    """Return one line per cause with its number of checks; empty if the only cause was already printed.

    If nothing else was printed, the command that reproduces the first cause follows: it shows the cause in full.
    """
    causes = [(cause, section.kind) for section in found for cause in _causes_of(section)]
    if not causes or (len(causes) == 1 and not detail.quiet):
        return []
    lines = [cause_line(number, cause, width, kind) for number, (cause, kind) in enumerate(causes, 1)]
    again = command_again(report, causes[0][0].smallest) if detail.quiet else None
    lines += command_lines("reproduce [1]", again, width) if again else []
    return [heading(f"summary: {count(len(causes), 'cause')}", width), *lines, Line()]


def _cause(number: int, cause: FailureGroup, report: Report, width: int, detail: Detail) -> list[Line]:
    """Return the lines on a cause, and the command that reproduces its smallest check."""
    cells = len({(result.device, result.dtype) for result in report.results}) > 1
    # Hide ids only if an adapter prevented all judgements and no check has details of its own.
    every = len(cause.results) > 1 and cause.smallest.kind == "adapter"
    lines = cause_lines(cause, width, detail, cells=cells, every=every)
    return [*cause_head(number, cause, width), *lines, *_again(report, cause.smallest, width)]


def _again(report: Report, first: Result, width: int) -> list[Line]:
    """Return the lines with the commands that reproduce a check and write it as a script."""
    reported = {"reproduce": command_again(report, first), "script": command_of_script(report, first)}
    return [
        line for what, command in reported.items() if command for line in command_lines(what, command, width, indent=4)
    ]


def _fault(number: int, cause: FailureGroup, report: Report, width: int, detail: Detail) -> list[Line]:
    """Return the lines on a cause outside the target: the areas that it left without a verdict."""
    areas = Counter(result.check.partition(".")[0] for result in cause.results).most_common(_AREAS)
    first = cause.smallest
    found = f"[{number}] {count(len(cause.checks), 'check')}: {cause.text}"
    where = f"by area: {', '.join(f'{area} {checks}' for area, checks in areas)}; for example {first.check}"
    return [
        *wrapped(found, width, hanging=4, role="heading"),
        *wrapped(where, width, indent=4, hanging=2),
        *wrapped_each(first.message.splitlines()[1:][: detail.message_lines], width, indent=6, hanging=2),
        *_again(report, first, width),
    ]


def _preflights(found: Sequence[Device], width: int) -> list[Line]:
    """Return the section on devices whose pre-flight has a line that does not hold."""
    broken = [device for device in found if device.broken]
    if not broken:
        return []
    faults = count(sum(len(device.broken) for device in broken), "fault")
    lines = [heading(f"pre-flight of devices: {faults} of the device, not charged to the target", width, "warning")]
    for device in broken:
        lines += [Line(), *preflight_lines(device, width)]
    return [*lines, Line()]


def preflight_lines(device: Device, width: int) -> list[Line]:
    """Return how many lines of a device's pre-flight hold, and each one that does not."""
    lines = [Line(f"{device.name}  {device.held} of {count(device.lines, 'line')} hold")]
    for requirement, message in device.broken:
        lines += wrapped(f"- {requirement}", width, indent=2, hanging=2, role="warning")
        lines += wrapped(message, width, indent=4)
    return lines
