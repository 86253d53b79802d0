"""Edits a waiver file as text, so that comments and order stay: adds entries to fill in, and removes entries."""

from __future__ import annotations

import datetime as dt
import json
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradconform.contract.frozen import frozen
from gradconform.results import Place, Report, Result
from gradconform.trial.program import without_programs

from .waiver import TEXT_FIELDS, Waiver, WaiverError, Waivers, current_day, kinds, read_tables, read_waivers

_HEADER = re.compile(r"\s*\[\[\s*waiver\s*\]\]")
_OPENING = "# Failures that are expected: see 'gradconform waivers --help'.\n"


#: For how many days an entry holds if nobody says until when.
USUAL_DAYS = 90


def usual_expiry() -> dt.date:
    """Return the default last day of an entry."""
    return current_day() + dt.timedelta(days=USUAL_DAYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """The fields of new entries; the user fills in empty ones."""

    reason: str = ""
    issue: str = ""
    owner: str = ""
    expires: dt.date = field(default_factory=usual_expiry)

    @property
    def missing(self) -> list[str]:
        """The names of the fields that the user must fill in."""
        return [name for name in TEXT_FIELDS if not getattr(self, name)]


def added(path: str, report: Report, filled: Filled) -> tuple[str, int]:
    """Return the text of the file with an entry per failed check of ``report``, and the number of new entries.

    One entry serves all devices and dtypes in which a check failed. All have the ``filled`` fields. Raises
    :class:`~gradconform.waivers.waiver.WaiverError` if the file exists and has anything but entries.
    """
    file = Path(path)
    _, entries = read_tables(file) if file.exists() else (b"", [])
    text = file.read_text(encoding="utf-8") if file.exists() else _OPENING
    there = {(str(entry.get("check")), _key(entry.get("verdict"))) for entry in entries}  # what is none is no check's
    failures: dict[str, list[Result]] = {}
    for result in report.results:
        if result.status == "failed":
            failures.setdefault(result.check, []).append(result)
    blocks = [
        _block(check, results, report, filled)
        for check, results in failures.items()
        if (check, _pinned(results)) not in there
    ]
    return text + "".join(blocks), len(blocks)


def _key(verdict: object) -> tuple[str, ...]:
    return tuple(sorted(map(str, verdict))) if isinstance(verdict, list) else (str(verdict),)


def _pinned(results: Iterable[Result]) -> tuple[str, ...]:
    return tuple(sorted({kind for result in results for kind in kinds(result)}))


def _block(check: str, results: Sequence[Result], report: Report, filled: Filled) -> str:
    """Return an entry in TOML; JSON's form of a text or a list of texts is TOML as well."""
    pinned = _pinned(results)
    message_lines = without_programs(results[0].message, results[0].programs)
    # A TOML comment takes printable characters only.
    seen = "".join(letter for letter in " ".join(message_lines[:1]) if letter.isprintable())
    lines = [
        "",
        *_comment(results[0].requirement),
        *_comment(seen[:300]),
        "[[waiver]]",
        f"check = {json.dumps(check)}",
        f"verdict = {json.dumps(pinned[0] if len(pinned) == 1 else list(pinned))}",
        *(f"{name} = {json.dumps(getattr(filled, name), ensure_ascii=False)}" for name in TEXT_FIELDS),
        f"expires = {filled.expires.isoformat()}",
        f"when = {{ adapter = {json.dumps(report.target['name'], ensure_ascii=False)} }}",
    ]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# ", break_long_words=False)


def pruned(path: str, report: Report) -> tuple[str, list[tuple[int, Waiver]]]:
    """Return the text of the file without the entries that ``report`` shows to be needless, and these by number.

    An entry is needless if all its checks were judged and none failed. It must be for the run's adapter, torch, devices
    and dtypes. Raises :class:`~gradconform.waivers.waiver.WaiverError`.
    """
    waivers = read_waivers(path)
    cells = list(dict.fromkeys((result.device, result.dtype) for result in report.results))
    here = waivers.within(adapter=str(report.target["name"]), torch=str(report.environment["torch"]), cells=cells)
    contract = frozen(report.contract)
    known = () if contract is None else tuple(contract.checks)
    gone = [
        position
        for position, waiver in enumerate(waivers.entries)
        if position not in here.inapplicable and _needless(waiver, report, cells, known)
    ]
    text = Path(path).read_text(encoding="utf-8")
    return _without(text, gone, waivers), [(position + 1, waivers.entries[position]) for position in gone]


def _needless(waiver: Waiver, report: Report, cells: Sequence[tuple[str, str]], known: Iterable[str]) -> bool:
    covered = [result for result in report.results if waiver.covers(result.place)]
    passed = [result for result in covered if result.status in {"passed", "unexpectedly_passed"}]
    wanted = sum(waiver.covers(Place(check, *cell)) for check in known for cell in cells)
    return bool(covered) and len(passed) == len(covered) == wanted


def _without(text: str, gone: Sequence[int], waivers: Waivers) -> str:
    """Return the text without some entries, and the comments right above and within them."""
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    if len(headers) != len(waivers.entries):
        msg = f"{waivers.file}: cannot find where each entry begins; start each entry with a line [[waiver]]"
        raise WaiverError(msg)
    starts = [_with_comments(lines, header) for header in headers] + [len(lines)]
    dropped = {number for position in gone for number in range(starts[position], starts[position + 1])}
    return "".join(line for number, line in enumerate(lines) if number not in dropped)


def _with_comments(lines: Sequence[str], header: int) -> int:
    """Return the first line of an entry, or of the comment directly above it."""
    first = header
    while first and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    # What is also the first thing in the file may be the file's.
    return header if first == 0 and lines[0].startswith("#") else first
