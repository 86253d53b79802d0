"""A report as lines of text: what stands before the run, what failed and why, and the verdict last."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gradconform.finding_text import finding_line
from gradconform.results import STATUSES, Report, Result
from gradconform.version import KIT_VERSION

from .lines import Line, Role, count, heading, listed, wrapped, wrapped_each
from .probed import Device, devices, left_out
from .sections import Cause, Section, idle_waivers, sections, waiver_file
from .sentences import (
    against_manifest,
    command_again,
    command_of_script,
    numbers,
    shard_name,
    title,
    tone,
    torch_untested,
    verdict,
)

#: So many areas of the contract are named with how many of their checks a device fault left without a verdict.
_AREAS = 12

#: So many places of further findings of a check are named.
_PLACES = 8


def opening(report: Report, cells: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Return what is judged, and where, by what. ``cells`` are the devices and dtypes of the run."""
    file, text = report.target.get("file"), report.target["text"]
    named = "" if text == report.target["name"] else f", named as {text}"
    where = ", ".join(f"{device} {dtype}" for device, dtype in cells)
    probed = ", what is not claimed is tried too" if report.profile == "full" else ""
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
        Line(),
    ]


def _planned(report: Report) -> str:
    whole = report.planned == report.manifest
    checks = count(report.planned, "check") if whole else f"{report.planned} of {report.manifest} checks"
    return f"{shard_name(report)}, {checks}" if report.shard else checks


def _scope(report: Report) -> str:
    return f"checks    {report.scope}" if report.extra else f"contract  {report.contract}, profile {report.profile}"


def tally_line(area: str, results: Sequence[Result], planned: int, more: str = "") -> Line:
    """Return one line on an area: how many of its checks have a result, and which, and what ``more`` there is."""
    counts = Counter(result.status for result in results)
    shown = ", ".join(f"{counts[status]} {status.replace('_', ' ')}" for status in STATUSES if counts[status])
    decided = any(result.decisive for result in results)
    role: Role = "bad" if decided else "warning" if counts["failed"] else "plain"
    return Line(f"{area}  {len(results):>4} of {planned:<4} {shown}{more}", role)


def closing(report: Report, width: int, stopped: str | None = None) -> list[Line]:
    """Return all that is to be said after a run; the verdict is the last line. ``stopped`` says why it ended early.

    The verdict is one line however long it is, so that the last line of a log has all of it.
    """
    return [
        Line(),
        *(line for section in sections(report) for line in _section(section, report, width)),
        *_preflights(devices(report), width),
        *listed("found and left out", left_out(report), width),
        *wrapped_each(numbers(report), width, role="faint"),
        *(wrapped(f"The run was stopped: {stopped}", width, role="warning") if stopped else []),
        *wrapped_each(idle_waivers(report), width, hanging=4, role="bad"),
        *wrapped_each(torch_untested(report), width, hanging=4, role="warning"),
        *wrapped(against_manifest(report), width, role="plain" if report.complete else "warning"),
        Line(verdict(report), tone(report)),
    ]


def _section(section: Section, report: Report, width: int) -> list[Line]:
    """Return the items of a section, or where it has none its note and its causes."""
    lines = [heading(section.heading, width, section.role)]
    if section.items:
        for item in section.items:
            lead, hanging = ("  ", 4) if item.number is None else (f"{item.number:>5}  ", 7)
            lines += wrapped(lead + item.text, width, hanging=hanging)
        return [*lines, Line()]
    lines += [*wrapped(section.note, width), Line()]
    for number, cause in enumerate(section.causes, 1):
        lines += _fault(number, cause, report, width) if section.spares_target else _cause(number, cause, report, width)
        lines.append(Line())
    return lines


def _cause(number: int, cause: Cause, report: Report, width: int) -> list[Line]:
    """Return the lines on a cause, and the command that runs its first check again."""
    first = cause.results[0]
    cells = len({(result.device, result.dtype) for result in report.results}) > 1
    # An id is never hidden, but where an adapter let nothing be judged and no check has anything of its own to say.
    every = len(cause.results) > 1 and first.kind == "adapter"
    return [*cause_lines(number, cause, width, cells=cells, every=every), *_again(report, first, width)]


def _again(report: Report, first: Result, width: int) -> list[Line]:
    """Return the lines on the command that runs a check again, and on that which writes it as a script."""
    told = {"again": command_again(report, first), "script": command_of_script(report, first)}
    lines = (f"{what}: {command}" for what, command in told.items() if command)
    return wrapped_each(lines, width, indent=4, hanging=4)


def _fault(number: int, cause: Cause, report: Report, width: int) -> list[Line]:
    """Return the lines on a cause that is none of the target's: the areas that it left without a verdict."""
    areas = Counter(result.check.partition(".")[0] for result in cause.results).most_common(_AREAS)
    first = cause.results[0]
    found = f"[{number}] {count(len(cause.checks), 'check')}: {cause.text}"
    where = f"in {', '.join(f'{area} {checks}' for area, checks in areas)}; in {first.check}"
    return [
        *wrapped(found, width, hanging=4, role="heading"),
        *wrapped(where, width, indent=4, hanging=2),
        *wrapped_each(first.message.splitlines()[1:], width, indent=6, hanging=2),
        *_again(report, first, width),
    ]


def _preflights(found: Sequence[Device], width: int) -> list[Line]:
    """Return the section on devices of which some line of the pre-flight does not hold."""
    broken = [device for device in found if device.broken]
    if not broken:
        return []
    faults = count(sum(len(device.broken) for device in broken), "fault")
    lines = [heading(f"pre-flight of devices: {faults} of the device, not charged to the target", width, "warning")]
    for device in broken:
        lines += [Line(), *preflight_lines(device, width)]
    return [*lines, Line()]


def preflight_lines(device: Device, width: int) -> list[Line]:
    """Return how many lines of a device's pre-flight hold, and each that does not."""
    lines = [Line(f"{device.name}  {device.held} of {count(device.lines, 'line')} hold")]
    for requirement, message in device.broken:
        lines += wrapped(f"- {requirement}", width, indent=2, hanging=2, role="warning")
        lines += wrapped(message, width, indent=4)
    return lines


#: How many findings of a cause's first check are shown in full, and of every further one; the rest is named.
SHOWN_FIRST, SHOWN = 3, 1

#: A clause is told once for several checks where at least so many of its words are the same in all.
_SHARED_WORDS = 4

_LONGEST_CAUSE = 400


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one result saw: where (its programs), and its findings, without what the cause's own line says."""

    where: str
    findings: tuple[str, ...]
    places: tuple[str, ...]


def cause_lines(number: int, cause: Cause, width: int, *, cells: bool, every: bool) -> list[Line]:
    """Return the lines on one cause.

    ``cells``: the run has several devices or dtypes, so each check says in which it failed. ``every``: nothing could be
    judged, for this one reason, so no id is listed.
    """
    checks = cause.checks
    told = textwrap.shorten(cause.text, _LONGEST_CAUSE, placeholder=" ...")
    lines = wrapped(f"[{number}] {count(len(checks), 'check')}: {told}", width, hanging=4, role="heading")
    seen = {check: _seen(results[0]) for check, results in checks.items()}
    wheres = {one.where for one in seen.values()}
    alike = len(seen) > 1 and len(set(seen.values())) == 1
    if len(wheres) == 1:
        lines += wrapped(wheres.pop(), width, indent=4, hanging=2, role="faint")
        seen = {check: _Seen("", one.findings, one.places) for check, one in seen.items()}
    if alike or every:
        lines += _findings(next(iter(seen.values())), width, 4, SHOWN_FIRST)
        seen = dict.fromkeys(seen, _Seen("", (), ()))
    return lines + (
        wrapped("in every check that was tried", width, indent=4) if every else _checks(cause, seen, width, cells)
    )


def _checks(cause: Cause, seen: dict[str, _Seen], width: int, cells: bool) -> list[Line]:  # noqa: FBT001 (passed on)
    lines: list[Line] = []
    checks = cause.checks
    shown = SHOWN_FIRST
    for _, group in groupby(sorted(checks), key=lambda check: check.rpartition(".")[0]):
        ids = list(group)
        clause, own = _clause([checks[check][0].requirement for check in ids])
        lines += wrapped(clause, width, indent=4)
        for check, words in zip(ids, own, strict=True):
            places = f" [{', '.join(f'{r.device} {r.dtype}' for r in checks[check])}]" if cells else ""
            lines += wrapped(f"{check}{places}: {words}", width, indent=6, hanging=4)
            lines += wrapped(seen[check].where, width, indent=8, hanging=2, role="faint")
            lines += _findings(seen[check], width, 8, shown)
            shown = SHOWN
    return lines


def _seen(result: Result) -> _Seen:
    """Return what a result saw: what its message says before the findings, such as the programs, and each of these."""
    said = result.preamble
    if not result.findings:
        # Of a crash of the kit the last line is the cause, of all else the first one.
        return _Seen("", tuple(said if result.kind == "kit" and len(said) > 1 else said[1:]), ())
    findings = list(map(finding_line, result.findings))
    places = [str(finding["where"]) for finding in result.findings]
    where = "; ".join(said)
    if result.findings[0]["kind"] == "error":  # what was raised stands in the cause's line
        where += f", raised at {result.findings[0]['action']}"
        findings, places = findings[1:], places[1:]
    return _Seen(where, tuple(findings), tuple(places))


def _findings(seen: _Seen, width: int, indent: int, shown: int) -> list[Line]:
    """Return the first findings in full and the places of the others; a message without findings as it stands."""
    if not seen.places:
        return [Line(" " * indent + text) for text in seen.findings]
    lines = wrapped_each((f"- {text}" for text in seen.findings[:shown]), width, indent=indent, hanging=2)
    rest = list(dict.fromkeys(seen.places[shown:]))
    if rest:
        more = [f"{len(rest) - _PLACES} more"] if len(rest) > _PLACES else []
        lines += wrapped(f"- and {', '.join([*rest[:_PLACES], *more])}", width, indent=indent, hanging=2)
    return lines


def _clause(sentences: Sequence[str]) -> tuple[str, list[str]]:
    """Return the words that the sentences share, with dots for what they do not, and each sentence's own words."""
    if len(sentences) == 1:
        return "", list(sentences)
    words = [sentence.rstrip(".").split() for sentence in sentences]
    before = _alike(words)
    after = _alike([one[before:][::-1] for one in words])
    if before + after < _SHARED_WORDS:
        return "", list(sentences)
    own = [" ".join(one[before : len(one) - after]) or "the same" for one in words]
    last = words[0][len(words[0]) - after :]
    return " ".join([*words[0][:before], "...", *last]), own


def _alike(lists: Sequence[Sequence[str]]) -> int:
    """Return how many words all lists begin with."""
    return next(
        (index for index, column in enumerate(zip(*lists, strict=False)) if len(set(column)) > 1), min(map(len, lists))
    )
