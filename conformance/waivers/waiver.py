"""Waivers: expected failures with scope and reason, read from a file, and applied to results.

Any error in a file is raised before a run, with the expected value.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from gradconform.exits import UsageError
from gradconform.files.records import as_json, tupled
from gradconform.files.user_files import content
from gradconform.reading.report import schema
from gradconform.results import Place, Result
from gradconform.text.counts import count
from gradconform.text.findings import finding_line
from gradconform.user_input.values import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: An entry has about 200 bytes.
_LARGEST_FILE = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The scope of a waiver: globs over the names of adapter, device and dtype, and a range of torch versions."""

    adapter: str = "*"
    torch: str = ""
    device: str = "*"
    dtype: str = "*"

    def holds(self, *, adapter: str, torch: str) -> bool:
        """Return whether the scope includes this adapter and torch; a version's tag is ignored."""
        return fnmatchcase(adapter, self.adapter) and SpecifierSet(self.torch).contains(
            torch.partition("+")[0], prereleases=True
        )

    def to_dict(self) -> dict[str, str]:
        """Return the set fields, as in the waiver file."""
        return {name: value for name, value in asdict(self).items() if value not in {"*", ""}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """One entry of a waiver file. ``verdict`` are the expected kinds of findings, ``expires`` is the last day."""

    check: str
    verdict: tuple[str, ...]
    reason: str
    issue: str
    owner: str
    expires: str
    when: Scope = Scope()

    def covers(self, place: Place) -> bool:
        """Return whether the entry is for the check, the device and the dtype of ``place``."""
        return place.matches(self.check, self.when.device, self.when.dtype)

    def expects(self, result: Result) -> bool:
        """Return whether all findings of ``result`` have pinned kinds."""
        return result.status == "failed" and kinds(result) <= set(self.verdict)

    def to_dict(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {**as_json(self), "when": self.when.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Waiver:
        """Return the entry that :meth:`to_dict` gave."""
        return cls(**{**tupled(values), "when": Scope(**values["when"])})


def kinds(result: Result) -> set[str]:
    """Return the kinds of all findings of a failure, or its own kind without findings."""
    return {str(finding["kind"]) for finding in result.findings} or {str(result.kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Waivers:
    """The entries of a waiver file, as one run applies them.

    ``inapplicable`` are the positions of entries that are for another adapter, torch, device or dtype than the run's.
    """

    file: str
    sha256: str
    entries: tuple[Waiver, ...]
    inapplicable: tuple[int, ...] = ()

    def within(self, *, adapter: str, torch: str, cells: Iterable[tuple[str, str]]) -> Waivers:
        """Return the waivers for a run: of ``adapter``, with ``torch``, on devices and dtypes ``cells``."""
        places = [Place("*", device, dtype) for device, dtype in cells]
        here = [
            waiver.when.holds(adapter=adapter, torch=torch)
            and any(replace(waiver, check="*").covers(place) for place in places)
            for waiver in self.entries
        ]
        return replace(self, inapplicable=tuple(position for position, holds in enumerate(here) if not holds))

    @property
    def here(self) -> list[Waiver]:
        """The entries that are for this run."""
        return [waiver for position, waiver in enumerate(self.entries) if position not in self.inapplicable]

    def apply(self, result: Result) -> Result:
        """Return a result with the waivers applied.

        A failure whose findings are all of a pinned kind is ``waived``, a pass ``unexpectedly_passed``. Any other
        failure of a check with a waiver stays a failure, and its message names the expected kind. Errors and checks
        that could not run cannot be waived.
        """
        if result.waiver is not None or result.status not in {"passed", "failed"}:
            return result
        covering = [waiver for waiver in self.here if waiver.covers(result.place)]
        if not covering:
            return result
        if result.status == "passed":
            return replace(result, status="unexpectedly_passed", waiver=covering[0].to_dict())
        for waiver in covering:
            if waiver.expects(result):
                return replace(result, status="waived", waiver=waiver.to_dict())
        expected = " or ".join(sorted({kind for waiver in covering for kind in waiver.verdict}))
        note = f"waived is only {expected}, in {self.file}, and this is not"
        return replace(result, message="\n".join([*result.preamble, note, *map(finding_line, result.findings)]))

    def record(self) -> dict[str, Any]:
        """Return the report's entry on the waivers, as JSON values."""
        return {
            "file": self.file,
            "sha256": self.sha256,
            "entries": [waiver.to_dict() for waiver in self.entries],
            "elsewhere": list(self.inapplicable),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Waivers:
        """Return the waivers that :meth:`record` gave."""
        entries = tuple(Waiver.from_dict(entry) for entry in record["entries"])
        return cls(
            file=record["file"], sha256=record["sha256"], entries=entries, inapplicable=tuple(record["elsewhere"])
        )


#: Looked for in the current folder by the command and the plugin.
DEFAULT_FILE = "gradconform-waivers.toml"

#: How many entries an error tells of.
_MOST_PROBLEMS = 20

#: What an entry says in words, beside what it is for.
TEXT_FIELDS = ("reason", "issue", "owner")
_TEXTS = ("check", *TEXT_FIELDS)
_NAMES = (*_TEXTS, "verdict", "expires", "when")


class WaiverError(UsageError):
    """A waiver file, or an entry of one, that cannot be applied."""


@lru_cache(maxsize=1)
def verdicts() -> tuple[str, ...]:
    """Return the possible verdicts of a waiver: the kinds of findings, and the failures without one."""
    known = schema()["$defs"]["finding"]["properties"]["kind"]["enum"]
    return (*known, "refused", "crash", "hang", "memory", "device_lost")


def current_day() -> dt.date:
    """Return the day in UTC that is compared with the last days of entries."""
    return dt.datetime.now(dt.timezone.utc).date()


def read_waivers(path: str | Path, *, today: dt.date | None = None) -> Waivers:
    """Read a waiver file.

    Raises :class:`WaiverError` with the problems of each entry: missing, empty or unknown names, unknown verdicts,
    invalid version ranges or dates, and expired entries.
    """
    content, tables = read_tables(Path(path))
    day = today or current_day()
    problems = [
        f"entry {number} ({table.get('check', '?')}): {problem}"
        for number, table in enumerate(tables, 1)
        for problem in _problems(table, day)
    ]
    if problems:
        _refuse(path, problems)
    entries = tuple(_waiver(table) for table in tables)
    return Waivers(file=str(path), sha256=hashlib.sha256(content).hexdigest(), entries=entries)


def refuse_unknown_checks(waivers: Waivers, known: Collection[str]) -> None:
    """Raise :class:`WaiverError` for entries that match none of the ``known`` check ids."""
    problems = [
        f"entry {number} ({waiver.check}): check does not exist; nearest: {nearest(waiver.check, known)[:200]}"
        for number, waiver in enumerate(waivers.entries, 1)
        if not any(fnmatchcase(check, waiver.check) for check in known)
    ]
    if problems:
        _refuse(waivers.file, problems)


def read_tables(path: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the content of a waiver file and its entries; raise :class:`WaiverError` for any other content."""
    try:
        held = content(path, _LARGEST_FILE)
        values = tomllib.loads(held.decode("utf-8"))
    except OSError as error:
        _refuse(path, [f"cannot read the file: {error.strerror}; expected a TOML file of [[waiver]] entries"])
    except ValueError as error:  # no UTF-8, or no TOML
        _refuse(path, [f"is not valid TOML: {error}; expected [[waiver]] entries"])
    except RecursionError:
        _refuse(path, ["is nested too deep; expected [[waiver]] entries"])
    tables = values.pop("waiver", [])
    if values or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        found = ", ".join(values) or "a waiver that is not a [[waiver]] table"
        _refuse(path, [f"expected only [[waiver]] entries, got {found}"])
    return held, tables


def _problems(table: Mapping[str, Any], today: dt.date) -> Iterator[str]:
    unknown = sorted(set(table) - set(_NAMES))
    if unknown:
        yield f"unknown name {', '.join(unknown)}; expected {', '.join(_NAMES)}"
    for name in _TEXTS:
        if not isinstance(table.get(name), str) or not table[name].strip():
            yield f"{name}: expected some text, got {_shown(table, name)}"
    given = _verdicts(table)
    wrong = [kind for kind in given if kind not in verdicts()]
    if wrong or not given:
        yield f"verdict: expected one or several of {', '.join(verdicts())}; got {_shown(table, 'verdict')}"
    yield from _date_problems(table, today)
    yield from _scope_problems(table.get("when", {}))


def _date_problems(table: Mapping[str, Any], today: dt.date) -> Iterator[str]:
    expires = table.get("expires")
    if not isinstance(expires, dt.date) or isinstance(expires, dt.datetime):
        like = f"{today.year + 1}-01-31"
        yield f"expires: expected a date such as {like}, without quotes; got {_shown(table, 'expires')}"
    elif expires < today:
        ago = (today - expires).days
        yield f"expired on {expires}, {count(ago, 'day')} ago; fix the failure, or set a later date"


def _scope_problems(when: Any) -> Iterator[str]:
    names = [field.name for field in fields(Scope)]
    if not isinstance(when, dict) or set(when) - set(names):
        yield f"when: expected a table of {', '.join(names)}; got {when!r}"
        return
    for name, value in when.items():
        if not isinstance(value, str) or not value:
            expected = "a range of versions" if name == "torch" else "a name or a glob"
            yield f"when.{name}: expected {expected}, got {value!r}"
        elif name == "torch":
            try:
                SpecifierSet(value)
            except InvalidSpecifier:
                yield f"when.torch: expected a range of versions such as '>=2.13,<2.14', got {value!r}"


def _verdicts(table: Mapping[str, Any]) -> list[Any]:
    given = table.get("verdict", [])
    return list(given) if isinstance(given, list) else [given]


def _waiver(table: Mapping[str, Any]) -> Waiver:
    texts = {name: table[name] for name in _TEXTS}
    when = Scope(**table.get("when", {}))
    return Waiver(**texts, verdict=tuple(_verdicts(table)), expires=table["expires"].isoformat(), when=when)


def _shown(table: Mapping[str, Any], name: str) -> str:
    return repr(table[name])[:80] if name in table else "nothing"


def _refuse(path: str | Path, problems: list[str]) -> NoReturn:
    more = [f"and {count(len(problems) - _MOST_PROBLEMS, 'more problem')}"] if len(problems) > _MOST_PROBLEMS else []
    msg = "\n".join(f"{path}: {problem}" for problem in [*problems[:_MOST_PROBLEMS], *more])
    raise WaiverError(msg)
