"""Reads a waiver file: whatever is wrong in it is refused before a run, with what was expected in its place."""

from __future__ import annotations

import datetime as dt
import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from gradconform.results import EXIT_USAGE
from gradconform.schema.reading import schema
from gradconform.waivers.waiver import Scope, Waiver
from gradconform.waivers.waiving import Waivers

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Looked for in the current folder by the command and the plugin.
DEFAULT_FILE = "gradconform-waivers.toml"

#: How many entries an error tells of.
_TOLD = 5

_TEXTS = ("check", "reason", "issue", "owner")
_NAMES = (*_TEXTS, "verdict", "expires", "when")


class WaiverError(ValueError):
    """A waiver file, or an entry of one, that cannot be applied; ``exit_code`` is what the command ends with."""

    exit_code: ClassVar[int] = EXIT_USAGE


@lru_cache(maxsize=1)
def verdicts() -> tuple[str, ...]:
    """Return what a waiver can be pinned to: the kinds of findings, and the ways to fail without one."""
    known = schema()["$defs"]["finding"]["properties"]["kind"]["enum"]
    return (*known, "refused", "crash", "hang", "memory", "device_lost")


def read_waivers(path: str | Path, *, today: dt.date | None = None) -> Waivers:
    """Read a waiver file.

    Raises :class:`WaiverError` that lists what is wrong with each entry: a name that is missing, empty or unknown, a
    verdict that no finding has, a range of versions or a date that is none, and an entry that has expired.
    """
    content, tables = _tables(Path(path))
    day = today or dt.datetime.now(dt.timezone.utc).date()
    problems = [
        f"entry {number} ({table.get('check', '?')}): {'; '.join(found)}"
        for number, table in enumerate(tables, 1)
        if (found := list(_problems(table, day)))
    ]
    if problems:
        _refuse(path, problems)
    entries = tuple(_waiver(table) for table in tables)
    return Waivers(file=str(path), sha256=hashlib.sha256(content).hexdigest(), entries=entries)


def refuse_unknown_checks(waivers: Waivers, known: Collection[str]) -> None:
    """Raise :class:`WaiverError` for entries that match none of the ``known`` check ids."""
    from gradconform.devices import nearest  # noqa: PLC0415 (it imports torch)

    problems = [
        f"entry {number} ({waiver.check}): no such check; nearest: {nearest(waiver.check, known)[:200]}"
        for number, waiver in enumerate(waivers.entries, 1)
        if not any(fnmatchcase(check, waiver.check) for check in known)
    ]
    if problems:
        _refuse(waivers.file, problems)


def _tables(path: Path) -> tuple[bytes, list[dict[str, Any]]]:
    try:
        content = path.read_bytes()
        values = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        _refuse(path, [f"cannot be read: {error.strerror}; expected a TOML file of [[waiver]] entries"])
    except ValueError as error:  # no UTF-8, or no TOML
        _refuse(path, [f"is no TOML: {error}; expected [[waiver]] entries"])
    tables = values.pop("waiver", [])
    if values or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        found = ", ".join(values) or "a waiver that is no [[waiver]] table"
        _refuse(path, [f"holds {found}; expected [[waiver]] entries and nothing else"])
    return content, tables


def _problems(table: Mapping[str, Any], today: dt.date) -> Iterator[str]:
    unknown = sorted(set(table) - set(_NAMES))
    if unknown:
        yield f"{', '.join(unknown)} is unknown; expected {', '.join(_NAMES)}"
    for name in _TEXTS:
        if not isinstance(table.get(name), str) or not table[name].strip():
            yield f"{name} is {_shown(table, name)}; expected some text"
    given = _verdicts(table)
    wrong = [kind for kind in given if kind not in verdicts()]
    if wrong or not given:
        yield f"verdict is {_shown(table, 'verdict')}; expected one or several of {', '.join(verdicts())}"
    yield from _date_problems(table, today)
    yield from _scope_problems(table.get("when", {}))


def _date_problems(table: Mapping[str, Any], today: dt.date) -> Iterator[str]:
    expires = table.get("expires")
    if not isinstance(expires, dt.date) or isinstance(expires, dt.datetime):
        yield f"expires is {_shown(table, 'expires')}; expected a date such as {today.year + 1}-01-31, without quotes"
    elif expires < today:
        ago = (today - expires).days
        yield f"expired on {expires}, {ago} days ago; mend what fails, or say until when it is expected to"


def _scope_problems(when: Any) -> Iterator[str]:
    names = [field.name for field in fields(Scope)]
    if not isinstance(when, dict) or set(when) - set(names):
        yield f"when is {when!r}; expected a table of {', '.join(names)}"
        return
    for name, value in when.items():
        if not isinstance(value, str) or not value:
            expected = "a range of versions" if name == "torch" else "a name or a glob"
            yield f"when.{name} is {value!r}; expected {expected}"
        elif name == "torch":
            try:
                SpecifierSet(value)
            except InvalidSpecifier:
                yield f"when.torch is {value!r}; expected a range of versions such as '>=2.13,<2.14'"


def _verdicts(table: Mapping[str, Any]) -> list[Any]:
    given = table.get("verdict", [])
    return list(given) if isinstance(given, list) else [given]


def _waiver(table: Mapping[str, Any]) -> Waiver:
    texts = {name: table[name] for name in _TEXTS}
    when = Scope(**table.get("when", {}))
    return Waiver(**texts, verdict=tuple(_verdicts(table)), expires=table["expires"].isoformat(), when=when)


def _shown(table: Mapping[str, Any], name: str) -> str:
    return repr(table[name])[:80] if name in table else "missing"


def _refuse(path: str | Path, problems: list[str]) -> NoReturn:
    more = [f"and {len(problems) - _TOLD} more entries"] if len(problems) > _TOLD else []
    msg = "\n".join(f"{path}: {problem}" for problem in [*problems[:_TOLD], *more])
    raise WaiverError(msg)
