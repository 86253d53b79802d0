"""Reads a report: from a file or a text to values that meet the schema and agree with themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from gradconform.results import SCHEMA, SCHEMA_VERSION

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

#: A report of 5,000 results has about 5 MB.
_LARGEST_FILE = 256 * 2**20
#: What no count, seed or version of a report reaches; Python would read far longer ones, slowly.
_DIGITS = 20
_SHOWN = 80


class ReportError(ValueError):
    """A file or text that is no report of the kit: what is wrong, where, and what was expected."""


def read_values(path_or_text: str | bytes | os.PathLike[str]) -> dict[str, Any]:
    """Return the values of a report that meets the schema; whether its counts are right is not asked.

    A ``str`` that starts with ``{`` is taken for the text itself, any other one for a path. Raises
    :class:`ReportError`.
    """
    name = named(path_or_text)
    values = _values(name, _text(path_or_text))
    _refuse_version(name, values)
    error = _first(_validator().iter_errors(values))
    if error is not None:
        _refuse(name, f"{_place(error.absolute_path)} {_told(error)}")
    return values


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the report."""
    source = files("gradconform.schema").joinpath(f"report-{SCHEMA_VERSION}.schema.json")
    found: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return found


@lru_cache(maxsize=1)
def _validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 (only who reads a report needs it)

    return Draft202012Validator(schema())


def named(given: str | bytes | os.PathLike[str]) -> str:
    """Return what messages call the report: its path where it has one."""
    return "the report" if _is_text(given) else str(given)


def _is_text(given: object) -> bool:
    return isinstance(given, bytes) or (isinstance(given, str) and given.lstrip().startswith("{"))


def _text(given: str | bytes | os.PathLike[str]) -> str:
    if isinstance(given, str) and _is_text(given):
        return given
    name, content = named(given), given if isinstance(given, bytes) else _content(Path(given))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse(name, f"byte {error.start} is {content[error.start : error.start + 1]!r}; expected text in UTF-8")


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            _refuse(str(path), f"has {size} bytes; expected a report, which has no more than {_LARGEST_FILE}")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(str(path), f"cannot be read: {reason}; expected a report that gradconform run --json has written")


def _values(name: str, text: str) -> dict[str, Any]:
    try:
        values = json.loads(
            text, parse_int=_integer, parse_float=_number, parse_constant=_constant, object_pairs_hook=_once
        )
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        ended = "; the text ends there, as a truncated file does" if cut else ""
        _refuse(name, f"line {error.lineno}, column {error.colno}: {error.msg}{ended}; expected JSON")
    except RecursionError:
        _refuse(name, "is nested deeper than any report; expected one that gradconform run --json has written")
    except _ValueProblem as problem:
        _refuse(name, str(problem))
    if not isinstance(values, dict):
        _refuse(name, f"holds {_shown(values)}; expected an object with a schema, a summary and results")
    return values


class _ValueProblem(Exception):  # noqa: N818 (it never leaves this module)
    """A value that JSON can be written with and no report has."""


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        msg = f"holds the number {_short(digits)} of {len(digits)} digits; expected no more than {_DIGITS}"
        raise _ValueProblem(msg)
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if value in {float("inf"), float("-inf")}:
        msg = f"holds the number {_short(digits)}; expected one that a float can hold"
        raise _ValueProblem(msg)
    return value


def _constant(word: str) -> NoReturn:
    msg = f"holds {word}, which is no JSON; expected a number or null"
    raise _ValueProblem(msg)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"holds an object with {_short(twice)!r} twice; expected each name once"
        raise _ValueProblem(msg)
    return values


def _refuse_version(name: str, values: Mapping[str, Any]) -> None:
    if values.get("schema") != SCHEMA:
        _refuse(name, f"schema is {_shown(values.get('schema'))}; expected {SCHEMA!r}, as each report of the kit has")
    version = values.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        then = "; install the version of gradconform that wrote it, or a later one" if newer else ""
        _refuse(name, f"schema_version is {_shown(version)}; expected {SCHEMA_VERSION}, which this kit reads{then}")


def _first(errors: Iterable[ValidationError]) -> ValidationError | None:
    """Return the error to tell; of a choice of two, the one in the alternative that was meant."""
    error = next(iter(errors), None)
    while error is not None and error.context:
        meant = [inner for inner in error.context if inner.validator_value != "null"]
        error = meant[0] if meant else error.context[0]
    return error


def _place(path: Iterable[str | int]) -> str:
    """Return a place in the report as Python writes it: ``results[3].headroom``."""
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{_short(part)}" for part in path).lstrip(".")
    return place or "the report"


def _told(error: ValidationError) -> str:
    """Say what is there and what was expected, without the schema's own words."""
    rule, value, found = str(error.validator), cast("Any", error.validator_value), cast("Any", error.instance)
    known = cast("dict[str, Any]", error.schema).get("properties", {})
    if rule == "required":
        missing = ", ".join(repr(name) for name in value if name not in found)
        return f"has no {missing}; expected it, as each report of this schema has"
    if rule == "additionalProperties" and isinstance(found, dict):
        unknown = _short(", ".join(repr(name) for name in found if name not in known))
        return f"has {unknown}, which the schema does not know; expected only {', '.join(known)}"
    expected: dict[str, Callable[[], str]] = {
        "type": lambda: " or ".join([value] if isinstance(value, str) else value),
        "enum": lambda: f"one of {', '.join(map(repr, value))}",
        "const": lambda: repr(value),
        "pattern": lambda: f"text of the form {value}",
        "minimum": lambda: f"a number from {value}",
        "exclusiveMinimum": lambda: f"a number above {value}",
        "maximum": lambda: f"a number up to {value}",
        "minLength": lambda: "some text",
        "minItems": lambda: "at least one entry",
    }
    return f"is {_shown(found)}; expected {expected[rule]()}"


def _shown(value: object) -> str:
    """Return a value for a message, short."""
    if isinstance(value, dict):
        return f"an object of {len(value)} names"
    if isinstance(value, list):
        return f"an array of {len(value)} entries"
    return _short("null" if value is None else repr(value))


def _short(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 4]} ..."


def _refuse(name: str, problem: str) -> NoReturn:
    msg = f"{name}: {problem}"
    raise ReportError(msg)
