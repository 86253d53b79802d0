"""A comparison as text, as Markdown fit for the summary of a CI job, and as JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradconform.reading.comparison import Change, Comparison, Expression
from gradconform.report.page.rendering import render
from gradconform.results import Report, Result
from gradconform.text.counts import count
from gradconform.trial.program import without_programs

from .detail import USUAL, Detail
from .lines import Line, Role, wrapped, wrapped_each
from .sentences import title
from .single_mistakes import causes_of

SCHEMA, SCHEMA_VERSION = "gradconform-comparison", 1

#: The kinds of change in print order, with headings; a change that belongs to another kind too is skipped.
HEADINGS: dict[str, tuple[str, Role]] = {
    "new_failures": ("new failures", "bad"),
    "newly_unsupported": ("judged before, unsupported now", "bad"),
    "newly_not_run": ("judged before, not run now", "bad"),
    "other_failures": ("failing as before, in another way", "warning"),
    "newly_waived": ("newly waived", "warning"),
    "headroom_drift": ("larger error", "warning"),
    "slower": ("slower", "plain"),
    "fixed": ("fixed", "good"),
}

#: Checks listed under a heading: in Markdown, and in a short report on a terminal.
_LISTED, _LISTED_SHORTLY = 50, 10

#: The most characters of a check's text to print.
_LONGEST = 200


def comparison_lines(found: Comparison, condition: Expression, width: int, detail: Detail = USUAL) -> list[Line]:
    """Return a comparison as lines of text; the last one says whether the condition holds."""
    last = Line(conclusion(found, condition), "bad" if condition.holds(found.counts) else "good")
    if detail.verdict_alone:
        return [last]
    lines = [
        *wrapped(f"base  {_run(found.base)}", width, hanging=6),
        *wrapped(f"new   {_run(found.new)}", width, hanging=6),
        Line(),
    ]
    for name, (heading, role) in HEADINGS.items():
        changes = found.changes[name]
        if changes:
            write_lines = _LAID_OUT.get(name, _each)
            lines += [
                Line(f"{heading}: {count(len(changes), 'check')}", role),
                *write_lines(changes, width, detail),
                Line(),
            ]
    if found.differences:
        lines += [Line(f"other differences: {len(found.differences)}")]
        differences = (f"{name}: {before!r} before, {now!r} now" for name, before, now in found.differences)
        lines += wrapped_each(differences, width, indent=2, hanging=4)
        lines += [Line()]
    return [*lines, last]


def _each(changes: Sequence[Change], width: int, detail: Detail) -> list[Line]:
    """Return a line per change, or only the first lines."""
    shown = changes if detail.ids else changes[:_LISTED_SHORTLY]
    left = len(changes) - len(shown)
    lines = wrapped_each((f"{one.place.name}: {_step(one)}" for one in shown), width, indent=2, hanging=4)
    return [*lines, *([Line(f"  and {left} more; -v lists them", "faint")] if left else [])]


def _by_reason(changes: Sequence[Change], width: int, detail: Detail) -> list[Line]:
    """Return each reason with the number of its checks and the first of these, or all."""
    groups: dict[str, list[str]] = {}
    for change in changes:
        groups.setdefault(_described_change(change) or "no result", []).append(change.place.name)
    lines: list[Line] = []
    for reason, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        shown = names if detail.ids else names[: detail.failures]
        left = len(names) - len(shown)
        more = f" and {count(left, 'more check')}" if left else ""
        lines += wrapped(
            f"{count(len(names), 'check')}: {reason}: {', '.join(shown)}{more}", width, indent=2, hanging=4
        )
    return lines


def _by_cause(changes: Sequence[Change], width: int, detail: Detail) -> list[Line]:
    """Return the changes by the cause of their new results: the smallest of each, or all."""
    of_place = {change.place: change for change in changes}
    lines: list[Line] = []
    results = [change.now for change in changes if change.now]
    for number, cause in enumerate(causes_of(results), 1):
        shown = cause.by_size if detail.ids else cause.by_size[: detail.failures]
        left = len(cause.results) - len(shown)
        head = f"[{number}] {count(len(cause.checks), 'check')}: {cause.text}"
        lines += wrapped(head, width, indent=2, hanging=4, role="heading")
        if not detail.quiet:
            reported = (f"{one.place.name}: {_step(of_place[one.place])}; {_first(one)}" for one in shown)
            lines += wrapped_each(reported, width, indent=6, hanging=2)
            lines += [Line(f"      and {count(left, 'more check')}", "faint")] if left else []
    return lines


#: Layouts of the kinds of change that do not take one line each.
_LAID_OUT = {
    "new_failures": _by_cause,
    "other_failures": _by_cause,
    "newly_unsupported": _by_reason,
    "newly_not_run": _by_reason,
}


def conclusion(found: Comparison, condition: Expression) -> str:
    """Return one sentence that says whether the condition holds, with the counts that it names."""
    counts = found.counts
    named = ", ".join(f"{name} = {counts[name]}" for name in condition.names) or "no count named"
    change = "worse than before" if condition.holds(counts) else "no worse than before"
    return f"{title(found.new)} is {change}: {condition.text} ({named})"


def comparison_markdown(found: Comparison, condition: Expression) -> str:
    """Return a comparison in Markdown."""
    return render(
        "comparison.md.j2",
        conclusion=conclusion(found, condition),
        runs={"base": _run(found.base), "new": _run(found.new)},
        reported=[(HEADINGS[name][0], changes) for name in HEADINGS if (changes := found.changes[name])],
        listed=_LISTED,
        result=_described_result,
        said=_described_change,
        differences=found.differences,
    )


def comparison_values(found: Comparison, condition: Expression) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "fail_on": condition.text,
        "regressed": condition.holds(found.counts),
        "conclusion": conclusion(found, condition),
        "base": _run_values(found.base),
        "new": _run_values(found.new),
        "counts": found.counts,
        "changes": {name: [_change_values(one) for one in changes] for name, changes in found.changes.items()},
        "differences": [{"name": name, "before": before, "now": now} for name, before, now in found.differences],
    }


def _run(report: Report) -> str:
    counts = report.summary
    reported = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in _STATUSES if counts[name])
    return f"{title(report)}, {report.scope}: {report.verdict}; {reported or 'no result'}"


_STATUSES = ("passed", "failed", "waived", "unexpectedly_passed", "error", "unsupported", "not_run")


def _run_values(report: Report) -> dict[str, Any]:
    return {
        "target": dict(report.target),
        **{name: getattr(report, name) for name in ("contract", "profile", "verdict", "summary")},
    }


def _step(change: Change) -> str:
    return f"{_described_result(change.before)} -> {_described_result(change.now)}"


def _first(result: Result) -> str:
    """Return the first finding of a result."""
    lines = without_programs(result.message, result.programs)
    return lines[0][:_LONGEST] if lines else ""


def _described_change(change: Change) -> str:
    """Return the first line of a check's current message, without its programs."""
    return "" if change.now is None else _first(change.now)


def _described_result(result: Result | None) -> str:
    if result is None:
        return "no result"
    parts = [result.status.replace("_", " ")]
    parts += [str(result.kind)] if result.kind else []
    parts += [f"error/bound {result.error_ratio:.2g}"] if result.error_ratio else []
    return f"{', '.join(parts)}, {result.duration_s:.2f} s"


def _change_values(change: Change) -> dict[str, Any]:
    each: Sequence[tuple[str, Result | None]] = (("before", change.before), ("now", change.now))
    return {
        **change.place._asdict(),
        **{name: None if result is None else _result_values(result) for name, result in each},
    }


def _result_values(result: Result) -> dict[str, Any]:
    names = ("status", "level", "kind", "message", "headroom", "duration_s")
    values = result.to_dict()
    return {name: values[name] for name in names}
