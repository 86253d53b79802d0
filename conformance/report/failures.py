"""The lines on one cause of failures: what was seen, and every check that saw it, with its requirement."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from itertools import groupby

from gradconform.report.causes import Cause
from gradconform.report.lines import Line, count, wrapped
from gradconform.results import Result

#: How many lines of one check's message are shown in full; the places of the others follow in one line.
SHOWN = 3

#: A family's shared words are told once where at least so many of them are shared.
_SHARED_WORDS = 4


def cause_lines(number: int, cause: Cause, width: int, *, cells: bool, every: bool) -> list[Line]:
    """Return the lines on one cause.

    ``cells``: the run has several devices or dtypes, so each check says in which it failed. ``every``: the cause holds
    every result of the run, so no id has to be listed.
    """
    checks = cause.checks
    told = f"[{number}] {textwrap.shorten(cause.text, width - 20, placeholder=' ...')}"
    lines = [Line(f"{told} ({count(len(checks), 'check')})", "heading")]
    shared = len({results[0].message for results in checks.values()}) == 1
    if every:
        lines += wrapped("in every check of this run", width, indent=4)
    else:
        lines += _checks(checks, width, cells=cells, shared=shared)
    return [*lines, *_message(cause.results[0], width, 4)] if shared or every else lines


def _checks(checks: dict[str, list[Result]], width: int, *, cells: bool, shared: bool) -> list[Line]:
    lines: list[Line] = []
    for _, group in groupby(sorted(checks), key=lambda check: check.rpartition(".")[0]):
        ids = list(group)
        before, own, after = _template([checks[check][0].requirement for check in ids])
        if before or after:
            lines += wrapped(f"{before} ... {after}".strip(), width, indent=4)
        for check, words in zip(ids, own, strict=True):
            where = f" [{', '.join(f'{r.device} {r.dtype}' for r in checks[check])}]" if cells else ""
            lines += wrapped(f"{check}{where}: {words}", width, indent=6, hanging=4)
            if not shared:
                lines += _message(checks[check][0], width, 10)
    return lines


def _message(result: Result, width: int, indent: int) -> list[Line]:
    """Return what was seen in one result; of more than a few wrong tensors the rest is named only."""
    said = result.message.splitlines()
    told = len(result.findings)
    head, findings = (said[:-told], said[-told:]) if told else (said, [])
    lines = [line for text in head for line in wrapped(text, width, indent=indent, role="faint")]
    for text in findings[:SHOWN]:
        lines += wrapped(text, width, indent=indent, hanging=2)
    rest = [str(finding["where"]) for finding in result.findings[SHOWN:]]
    if rest:
        lines += wrapped(f"and {len(rest)} more: {', '.join(rest)}", width, indent=indent, hanging=2)
    return lines


def _template(sentences: Sequence[str]) -> tuple[str, list[str], str]:
    """Split sentences that one clause made into the words before, each sentence's own words, and the words after."""
    words = [sentence.rstrip(".").split() for sentence in sentences]
    if len(sentences) == 1:
        return "", [sentences[0]], ""
    before = len(os.path.commonprefix([*words]))  # it compares any sequences, item by item
    after = len(os.path.commonprefix([[*reversed(own[before:])] for own in words]))
    if before + after < _SHARED_WORDS:
        return "", list(sentences), ""
    own = [" ".join(part[before : len(part) - after]) or "the same" for part in words]
    return " ".join(words[0][:before]), own, " ".join(words[0][len(words[0]) - after :])
