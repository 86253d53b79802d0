"""The lines on one cause of failures: what was seen, and every check that saw it, with its requirement."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from gradconform.report.causes import Cause
from gradconform.report.lines import Line, count, wrapped
from gradconform.results import Result

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
    """Read a message: the programs, then one line per finding."""
    said = result.message.splitlines()
    told = len(result.findings)
    if not told:
        # Of a crash of the kit the last line is the cause, of all else the first one.
        return _Seen("", tuple(said if result.kind == "kit" and len(said) > 1 else said[1:]), ())
    head, findings = said[:-told], said[-told:]
    places = [str(finding["where"]) for finding in result.findings]
    where = "; ".join(head)
    if result.findings[0]["kind"] == "error":  # what was raised stands in the cause's line
        where += f", raised at {result.findings[0]['action']}"
        findings, places = findings[1:], places[1:]
    return _Seen(where, tuple(findings), tuple(places))


def _findings(seen: _Seen, width: int, indent: int, shown: int) -> list[Line]:
    """Return the first findings in full and the places of the others; a message without findings as it stands."""
    if not seen.places:
        return [Line(" " * indent + text) for text in seen.findings]
    lines = [line for text in seen.findings[:shown] for line in wrapped(f"- {text}", width, indent=indent, hanging=2)]
    rest = list(dict.fromkeys(seen.places[shown:]))
    if rest:
        lines += wrapped(f"- and {', '.join(rest)}", width, indent=indent, hanging=2)
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
