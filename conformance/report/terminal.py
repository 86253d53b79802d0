"""A report as lines of text: what stands before the run, what failed and why, and the verdict last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradconform.replay.command import can_be_replayed, replay_command
from gradconform.report.causes import Cause, by_cause
from gradconform.report.device_faults import device_fault_lines, device_number_lines
from gradconform.report.device_lines import device_lines
from gradconform.report.expected import expected_lines, idle_lines, named_file
from gradconform.report.failures import cause_lines
from gradconform.report.lines import Line, Role, count, heading, wrapped
from gradconform.results import STATUSES, Report, Result
from gradconform.version import KIT_VERSION

_UNSURE = {"incomplete", "conforms with waivers"}
#: How many places of which too much is unsupported are named.
_PLACES = 3


def title(report: Report) -> str:
    """Return the target's name and version."""
    return " ".join(str(report.target[key]) for key in ("name", "version") if report.target.get(key))


def opening(report: Report, cells: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """Return what is judged, and where, by what. ``cells`` are the devices and dtypes of the run."""
    file, text = report.target.get("file"), report.target["text"]
    named = "" if text == report.target["name"] else f", named as {text}"
    places = ", ".join(f"{device} {dtype}" for device, dtype in cells)
    probed = ", what is not claimed is tried too" if report.profile == "full" else ""
    lines = [
        *wrapped(f"gradconform {KIT_VERSION} judges {title(report)}{named}", width, hanging=4, role="heading"),
        *([Line(f"file      {file}")] if file else []),
        *(line for one in report.beside for line in wrapped(f"on        {one}", width, hanging=10)),
        *named_file(report, width),
        *wrapped(
            f"{_scope(report)}{probed}: {_planned(report)} on {places}, seed {report.seed}",
            width,
            hanging=10,
        ),
    ]
    return [*lines, Line()]


def _planned(report: Report) -> str:
    whole = report.planned == report.manifest
    checks = count(report.planned, "check") if whole else f"{report.planned} of {report.manifest} checks"
    return f"{shard_name(report)}, {checks}" if report.shard else checks


def shard_name(report: Report) -> str:
    """Return which part of a divided run this is."""
    return "shard {index} of {count}".format(**report.shard or {})


def _scope(report: Report) -> str:
    return f"checks    {report.scope}" if report.beside else f"contract  {report.contract}, profile {report.profile}"


def tally_line(place: str, results: Sequence[Result], planned: int) -> Line:
    """Return one line on an area: how many of its checks have a result, and which."""
    counts = Counter(result.status for result in results)
    shown = ", ".join(f"{counts[status]} {status.replace('_', ' ')}" for status in STATUSES if counts[status])
    decided = any(result.decisive for result in results)
    role: Role = "bad" if decided else "warning" if counts["failed"] else "plain"
    return Line(f"{place}  {len(results):>4} of {planned:<4} {shown}", role)


def closing(report: Report, width: int, stopped: str | None = None) -> list[Line]:
    """Return all that is to be said after a run; the verdict is the last line. ``stopped`` says why it ended early."""
    failed = [result for result in report.failures if result.status == "failed"]
    errors = [result for result in report.failures if result.status == "error" and result.kind != "device"]
    must = [result for result in failed if result.level == "MUST"]
    should = [result for result in failed if result.level != "MUST"]
    aside = "" if report.strict else " (told, but only --strict lets them decide)"
    return [
        Line(),
        *device_fault_lines(report, width),
        *_section("could not be judged", errors, report, width, "bad"),
        *_section("failed MUST", must, report, width, "bad"),
        *_section(f"failed SHOULD{aside}", should, report, width, "bad" if report.strict else "warning"),
        *expected_lines(report, width),
        *_unsupported(report, width),
        *device_lines(report, width),
        *number_lines(report, width),
        *device_number_lines(report, width),
        *(wrapped(f"The run was stopped: {stopped}", width, role="warning") if stopped else []),
        *idle_lines(report, width),
        *manifest_lines(report, width),
        verdict_line(report),
    ]


def _section(name: str, results: list[Result], report: Report, width: int, role: Role) -> list[Line]:
    if not results:
        return []
    causes = by_cause(results)
    checks = len({result.check for result in results})
    cells = len({(result.device, result.dtype) for result in report.results}) > 1
    by = f" by {count(len(causes), 'cause')}" if len(causes) < checks else ""
    times = f", {len(results)} results," if len(results) > checks else ""
    lines = [heading(f"{name}: {count(checks, 'check')}{times}{by}".rstrip(","), width, role), Line()]
    for number, cause in enumerate(causes, 1):
        # An id is never hidden, but where an adapter let nothing be judged and no check has anything of its own to say.
        every = len(cause.results) > 1 and cause.results[0].kind == "adapter"
        lines += [*cause_lines(number, cause, width, cells=cells, every=every), *_again(report, cause, width), Line()]
    return lines


def _again(report: Report, cause: Cause, width: int) -> list[Line]:
    """Return the command that runs the first check of a cause again, alone; other ids are given in its place."""
    first = cause.results[0]
    return (
        wrapped(f"again: {replay_command(report, first)}", width, indent=4, hanging=4)
        if can_be_replayed(report)
        else []
    )


def _unsupported(report: Report, width: int) -> list[Line]:
    reasons = Counter(result.message for result in report.results if result.status == "unsupported")
    if not reasons:
        return []
    lines = [heading(f"unsupported: {count(sum(reasons.values()), 'check')}, neither passed nor failed", width)]
    for reason, number in reasons.most_common():
        lines += wrapped(f"{number:>5}  {' '.join(reason.split())}", width, hanging=7)
    return [*lines, Line()]


def number_lines(report: Report, width: int) -> list[Line]:
    """Say how near to plain autograd the passed checks are, and whether repeats gave the same bits."""
    compared = [result for result in report.results if result.status == "passed" and result.headroom is not None]
    if not compared:
        return []
    equal = sum(bool(result.bit_equal) for result in compared)
    nearest = max(compared, key=lambda result: result.headroom or 0.0)
    text = f"{equal} of the {len(compared)} passed checks that compare values are bit-equal to plain autograd"
    if nearest.headroom:
        text += f"; the largest error is {nearest.headroom:.2g} of its bound ({nearest.check})"
    lines = wrapped(text, width, role="faint")
    repeated = [result.repeats_bit_equal for result in report.results if result.repeats_bit_equal is not None]
    if repeated:
        text = (
            f"{sum(repeated)} of the {len(repeated)} checks that repeat a program were bit-equal from repeat to repeat"
        )
        lines += wrapped(text, width, role="faint")
    return lines


def manifest_lines(report: Report, width: int) -> list[Line]:
    """Return the count against the manifest."""
    counts = report.summary
    rest = [
        (counts["unsupported"], "unsupported"),
        (counts["not_run"], "planned but not run"),
        (report.selected - report.planned, "in other shards"),
        (report.manifest - report.selected, "not selected"),
    ]
    more = "".join(f"; {number} {what}" for number, what in rest if number)
    more += "".join(f"; too much is unsupported: {place}" for place in report.unjudged[:_PLACES])
    of = f"{report.manifest} checks of {report.scope}"
    return wrapped(f"{counts['ran']} of {of}, ran{more}", width, role="plain" if report.complete else "warning")


def verdict_line(report: Report) -> Line:
    """Return the verdict; one line however long it is, so that the last line of a log has all of it."""
    role: Role = (
        "good" if report.verdict in {"conforms", "passed"} else "warning" if report.verdict in _UNSURE else "bad"
    )
    return Line(verdict(report), role)


def verdict(report: Report) -> str:
    """Return the verdict on the target in one sentence, without a full stop."""
    counts, name = report.summary, title(report)
    kinds = sorted({str(result.kind) for result in report.results if result.status == "error"})
    must = counts["failed"] - counts["failed_should"]
    failed = " and ".join(
        f"{number} {level}" for number, level in ((must, "MUST"), (counts["failed_should"], "SHOULD")) if number
    )
    if report.strict and counts["unexpectedly_passed"]:
        unexpected = f"{count(counts['unexpectedly_passed'], 'waived check')} passed"
        failed = f"{failed} failed and {unexpected}" if failed else unexpected
    if kinds:
        told = f"; {failed} failed" if failed else ""
        return f"{name}: error: {', '.join(kinds)}: {count(counts['error'], 'check')} could not be judged{told}"
    if report.shard is not None:
        return f"{name}: {shard_name(report)}: {_of_the_shard(report, failed)}; 'gradconform merge' gives the verdict"
    if report.beside and report.verdict != "incomplete":
        told = f"{counts[report.verdict]} of {count(report.manifest, 'check')} {report.verdict}"
        return f"{name}: {told}; no verdict on contract {report.contract}, which was not run"
    if report.verdict == "does not conform":
        part = "" if report.complete else ", and not all of the contract was run"
        return f"{name} does NOT conform: {failed} failed{part}"
    but = f"; {failed} failed" if failed else ""
    if report.verdict.startswith("conforms"):
        held = f", {counts['unsupported']} are unsupported" if counts["unsupported"] else ""
        held += f", {counts['waived']} are waived" if counts["waived"] else ""
        aside = " with waivers" if not report.conforms else ""
        return (
            f"{name} conforms to contract {report.contract} in profile {report.profile}{aside}: "
            f"{counts['passed']} of {report.manifest} checks passed{held}{but}"
        )
    return f"{name}: incomplete, no verdict: {counts['ran']} of {report.manifest} checks ran{but or ', none failed'}"


def _of_the_shard(report: Report, failed: str) -> str:
    counts = report.summary
    if report.verdict == "incomplete":
        return f"incomplete: {counts['ran']} of {report.planned} checks ran{f'; {failed} failed' if failed else ''}"
    return f"{failed} failed" if failed else f"{counts['passed']} of {report.planned} checks passed"
