"""A cause as lines of text: the smallest checks that show it, or all of them with their findings."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from gradconform.results import Result
from gradconform.text.counts import count
from gradconform.text.findings import finding_line, frame_lines, needed
from gradconform.trial.program import programs_line

from .by_cause import FailureGroup
from .clauses import clause_of
from .detail import Detail
from .lines import Line, with_own_indent, wrapped, wrapped_each

#: Findings shown in full for a cause's first check, and for each later one; the others are only named.
SHOWN_FIRST, SHOWN = 3, 1

#: Places of further findings to name per check, and the number in a short report.
_PLACES, _FEW_PLACES = 8, 3

_LONGEST_CAUSE = 400


@dataclass(frozen=True, slots=True)
class _Seen:
    """The findings of one result and its programs (``where``), without the text of the cause's own line.

    ``frames`` are the target's frames of an exception.
    """

    where: str
    findings: tuple[str, ...]
    places: tuple[str, ...]
    frames: tuple[str, ...] = ()


def cause_head(number: int, cause: FailureGroup, width: int) -> list[Line]:
    """Return the header lines of a cause: number of checks, finding, likely cause and required features."""
    lead = f"[{number}] {count(len(cause.checks), 'check')}: "
    lines = wrapped(lead + _short(cause.symptom), width, hanging=4, role="heading")
    for label, reported in (("likely cause", cause.likely), ("only with", cause.needs)):
        lines += wrapped(f"{label}: {_short(reported)}", width, indent=4, hanging=2, role="heading") if reported else []
    return lines + (wrapped(str(cause.gone), width, indent=4, hanging=2, role="heading") if cause.gone else [])


def _short(reported: str) -> str:
    return textwrap.shorten(reported, _LONGEST_CAUSE, placeholder=" ...")


def cause_line(number: int, cause: FailureGroup, width: int, kind: str = "") -> Line:
    """Return a cause as one summary line, cut to the width; ``kind`` labels a cause that is not a failed MUST."""
    lead = f"[{number}]".ljust(5)
    reported = f"{cause.likely}: {cause.symptom}" if cause.likely else cause.symptom
    text = f"{lead}{len(cause.checks):>5}  {f'{kind}: ' if kind else ''}{' '.join(reported.split())}"
    return Line(text if len(text) <= width else f"{text[: width - 3]}...")


def cause_lines(cause: FailureGroup, width: int, detail: Detail, *, cells: bool, every: bool) -> list[Line]:
    """Return the lines on the checks that show a cause: the smallest ones, or all.

    ``cells``: the run has several devices or dtypes, so each check names those in which it failed. ``every``: this one
    reason prevented all judgements, so no id is listed.
    """
    if every:
        lines = _findings(_seen(cause.smallest), width, 4, SHOWN_FIRST, detail.message_lines)
        return lines + wrapped("in every check that was tried", width, indent=4)
    if not detail.ids:
        return _examples(cause, width, detail, cells)
    seen = {check: _seen(results[0]) for check, results in cause.checks.items()}
    if not detail.everything:
        shown = _smallest(cause, detail)
        seen = {check: one if check in shown else _Seen("", (), ()) for check, one in seen.items()}
        return _checks(cause, seen, width, cells)
    return _all(cause, seen, width, cells)


def _all(cause: FailureGroup, seen: dict[str, _Seen], width: int, cells: bool) -> list[Line]:  # noqa: FBT001 (passed on)
    """Return the lines on every check and its findings; findings common to all are printed once."""
    lines: list[Line] = []
    wheres = {one.where for one in seen.values()}
    alike = len(seen) > 1 and len(set(seen.values())) == 1
    if len(wheres) == 1:
        lines += wrapped(wheres.pop(), width, indent=4, hanging=2, role="faint")
        seen = {check: replace(one, where="") for check, one in seen.items()}
    if alike:
        first = next(iter(seen.values()))
        lines += _findings(first, width, 4, SHOWN_FIRST)
        lines += wrapped_each(first.frames, width, indent=4, hanging=2)
        seen = dict.fromkeys(seen, _Seen("", (), ()))
    return lines + _checks(cause, seen, width, cells)


def _smallest(cause: FailureGroup, detail: Detail) -> list[str]:
    """Return the ids of the smallest checks that show a cause."""
    return list(dict.fromkeys(result.check for result in cause.by_size))[: detail.failures]


def _examples(cause: FailureGroup, width: int, detail: Detail, cells: bool) -> list[Line]:  # noqa: FBT001 (passed on)
    """Return the smallest checks that show a cause, with their findings, and the number of the others."""
    checks = cause.checks
    smallest = _smallest(cause, detail)
    lines: list[Line] = []
    for check in smallest:
        result = checks[check][0]
        seen = _seen(result, cause.text, explained=cause.gone is not None)
        where = f": {_where(result, seen)}" if seen.where else ""
        lines += wrapped(f"{check}{_cells(checks[check], cells)}{where}", width, indent=4, hanging=2)
        lines += _findings(seen, width, 6, SHOWN, detail.message_lines)
    more = len(checks) - len(smallest)
    return [*lines, *([Line(f"    and {count(more, 'more check')}", "faint")] if more else [])]


def _where(result: Result, seen: _Seen) -> str:
    """Return the program of a result; of several, the first that has the action."""
    line = programs_line(result.programs)
    if len(result.programs) < 2 or line not in seen.where or not result.findings:  # noqa: PLR2004 (several)
        return seen.where
    action = str(result.findings[0]["action"])
    first = next((one for one in result.programs if action in one.split()), result.programs[0])
    return seen.where.replace(line, f"{programs_line([first])}, one of {len(result.programs)}")


def _cells(results: Sequence[Result], cells: bool) -> str:  # noqa: FBT001 (passed on)
    return f" [{', '.join(f'{one.device} {one.dtype}' for one in results)}]" if cells else ""


def _checks(cause: FailureGroup, seen: dict[str, _Seen], width: int, cells: bool) -> list[Line]:  # noqa: FBT001 (passed on)
    lines: list[Line] = []
    checks = cause.checks
    shown = SHOWN_FIRST
    for _, group in groupby(sorted(checks), key=lambda check: check.rpartition(".")[0]):
        ids = list(group)
        clause = clause_of([checks[check][0].requirement for check in ids])
        lines += wrapped(clause.shared, width, indent=4)
        for check, words in zip(ids, clause.own, strict=True):
            reported = f"{check}{_cells(checks[check], cells)}: {words or 'the same'}"
            lines += wrapped(reported, width, indent=6, hanging=4)
            lines += wrapped(seen[check].where, width, indent=8, hanging=2, role="faint")
            lines += _findings(seen[check], width, 8, shown)
            lines += wrapped_each(seen[check].frames, width, indent=8, hanging=2)
            shown = SHOWN
    return lines


def _seen(result: Result, reported: str = "", *, explained: bool = False) -> _Seen:
    """Return the text of a result's message before its findings, such as the programs, and each finding.

    ``reported`` is the line of the cause, whose text is not repeated. ``explained``: the cause is a single mistake, so
    no other cause is named.
    """
    lines = result.preamble
    if not result.findings:
        # The cause is the last line of a kit crash, and the first line of any other message.
        return _Seen("", tuple(lines if result.kind == "kit" and len(lines) > 1 else lines[1:]), ())
    findings = [finding_line(_without_reported(finding, reported, explained=explained)) for finding in result.findings]
    places = [str(finding["where"]) for finding in result.findings]
    where = "; ".join(lines)
    if result.findings[0]["kind"] == "error":  # the cause's line has the exception
        where += f", raised at {result.findings[0]['action']}"
        findings, places = findings[1:], places[1:]
    return _Seen(where, tuple(findings), tuple(places), tuple(frame_lines(result.findings)))


def _without_reported(finding: Mapping[str, Any], reported: str, *, explained: bool) -> Mapping[str, Any]:
    """Return a finding without the cause and the needs in ``reported``; without both if a mistake explains it."""
    why = finding["cause"]
    needs = needed([finding])
    without = {"cause": None} if why and (explained or str(why["text"]) in reported) else {}
    return {**finding, **without, **({"needs": None} if needs and (explained or needs in reported) else {})}


def _findings(seen: _Seen, width: int, indent: int, shown: int, most: int | None = None) -> list[Line]:
    """Return the first findings in full and the places of the others; for a plain message, its last lines.

    ``most`` limits the number of these lines, so fewer places are named.
    """
    if not seen.places:
        return [
            line
            for text in seen.findings[-most if most else None :]
            for line in with_own_indent(text, width, indent=indent)
        ]
    named = _PLACES if most is None else _FEW_PLACES
    lines = wrapped_each((f"- {text}" for text in seen.findings[:shown]), width, indent=indent, hanging=2)
    rest = list(dict.fromkeys(seen.places[shown:]))
    if rest:
        more = [f"{len(rest) - named} more"] if len(rest) > named else []
        lines += wrapped(f"- and {', '.join([*rest[:named], *more])}", width, indent=indent, hanging=2)
    return lines
