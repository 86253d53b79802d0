"""Reading of a report: its values must meet the schema and agree with each other and with the contract.

A report that was edited by hand, or merged in part, does not agree.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from gradconform.adapter import is_option
from gradconform.contract.frozen import FrozenCheck, FrozenContract, frozen
from gradconform.exits import UsageError
from gradconform.files.user_files import LARGEST_REPORT, LONGEST_TEXT, content, line_of_long_text
from gradconform.results import SCHEMA, SCHEMA_VERSION, Place, Report, Result
from gradconform.text.counts import count
from gradconform.user_input.values import PROFILES, nearest

from .mistaken_files import instead_of_report

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError


#: More digits than any count, seed or version of a report has; Python would read much longer numbers, slowly.
_DIGITS = 20
_SHOWN = 80
#: The text that may follow the place of an error if a number or a word was cut off.
_CUT = re.compile(r"[-+.\deE]*|tr?u?|fa?l?s?|nu?l?")
#: The most characters of a list of words to show; there are some sixty kinds of cause.
_SHOWN_WORDS = 900


class ReportError(UsageError):
    """The file or text is no report of the kit; the message has the problem, its place and the expected value."""


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the report."""
    source = files("gradconform.reading").joinpath(f"report-{SCHEMA_VERSION}.schema.json")
    found: dict[str, Any] = json.loads(source.read_text(encoding="utf-8"))
    return found


def named(given: str | bytes | os.PathLike[str]) -> str:
    """Return the report's name in messages: its path if it has one."""
    return "the report" if _is_text(given) else str(given)


def _is_text(given: object) -> bool:
    return isinstance(given, bytes) or (isinstance(given, str) and given.lstrip().startswith("{"))


def _text(given: str | bytes | os.PathLike[str]) -> str:
    if isinstance(given, str) and _is_text(given):
        return given
    name, held = named(given), given if isinstance(given, bytes) else _content(Path(given))
    if (line := line_of_long_text(held)) is not None:
        _refuse(name, f"line {line}: expected texts of at most {LONGEST_TEXT} bytes, got a longer one")
    try:
        return held.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse_another_kind(name, held)
        _refuse(name, f"byte {error.start}: expected text in UTF-8, got {held[error.start : error.start + 1]!r}")


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if size > LARGEST_REPORT:
            _refuse(str(path), f"expected a report of at most {LARGEST_REPORT} bytes, got {size}")
        return content(path, LARGEST_REPORT)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or str(error)
        _refuse(str(path), f"cannot read the file: {reason}; expected a report from gradconform run --json")


def _values(name: str, text: str) -> dict[str, Any]:
    try:
        values = values_of(text)
    except json.JSONDecodeError as error:
        _refuse_another_kind(name, text.encode())
        cut = error.msg.startswith("Unterminated string") or _CUT.fullmatch(text[error.pos :].rstrip())
        ended = "; the text ends there, so the file may be truncated" if cut else ""
        _refuse(name, f"line {error.lineno}, column {error.colno}: {error.msg}{ended}; expected JSON")
    except RecursionError:
        _refuse(name, "is nested too deep; expected a report from gradconform run --json")
    except ValueProblem as problem:
        _refuse(name, str(problem))
    if not isinstance(values, dict):
        _refuse(name, f"expected an object with a schema, a summary and results; got {_shown(values)}")
    return values


def _refuse_another_kind(name: str, held: bytes) -> None:
    """Raise for a file that is known to be of another kind."""
    if reported := instead_of_report(held, name):
        _refuse(name, f"{reported}; expected a report")


class ValueProblem(ValueError):  # noqa: N818 (it has the problem; readers add the file)
    """A value that JSON can hold, but neither a report nor a record can."""


def values_of(text: str) -> Any:
    """Return the values of a JSON text.

    Raises :class:`ValueProblem` for a number larger than a report's, for NaN, and for a duplicate name. It also raises
    the errors of ``json.loads``.
    """
    return json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_constant, object_pairs_hook=_once)


def _integer(digits: str) -> int:
    if len(digits) > _DIGITS:
        msg = f"expected numbers of at most {_DIGITS} digits, got {_short(digits)} of {len(digits)} digits"
        raise ValueProblem(msg)
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if value in {float("inf"), float("-inf")}:
        msg = f"expected numbers that fit in a float, got {_short(digits)}"
        raise ValueProblem(msg)
    return value


def _constant(word: str) -> NoReturn:
    msg = f"expected a number or null, got {word}, which is not JSON"
    raise ValueProblem(msg)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"expected each name once in an object, got {_short(twice)!r} twice"
        raise ValueProblem(msg)
    return values


def _refuse_version(name: str, values: Mapping[str, Any]) -> None:
    if values.get("schema") != SCHEMA:
        _refuse(name, f"schema: expected {SCHEMA!r}, as in every report; got {_shown(values.get('schema'))}")
    version = values.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        then = "; install the version of gradconform that wrote it, or a later one" if newer else ""
        _refuse(name, f"schema_version: this kit expected {SCHEMA_VERSION}, got {_shown(version)}{then}")


def _refuse_other_values(name: str, values: Mapping[str, Any]) -> None:
    problem = problem_of(values, "report")
    if problem is not None:
        _refuse(name, problem)


def problem_of(values: Mapping[str, Any], what: Literal["report", "result"]) -> str | None:
    """Return the place at which values violate the schema of a report, or of its result; None if they are valid."""
    from jsonschema.exceptions import best_match  # noqa: PLC0415 (only reading a report needs it)

    error = best_match(_validator(what).iter_errors(values))
    while error is not None and error.context:  # for null or an object, the object was meant
        error = best_match(inner for inner in error.context if inner.validator_value != "null")
    if error is None:
        return None
    place = error.json_path.removeprefix("$").lstrip(".") or f"the {what}"
    return f"{_short(place)}{_described(error)}"


@cache
def _validator(what: str) -> Draft202012Validator:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 (as above)

    whole = schema()
    return Draft202012Validator(whole if what == "report" else {"$ref": f"#/$defs/{what}", "$defs": whole["$defs"]})


def _described(error: ValidationError) -> str:
    """Return the expected and the actual value, to follow the place's name, without the schema's own words."""
    rule, value, found = str(error.validator), cast("Any", error.validator_value), cast("Any", error.instance)
    known = cast("dict[str, Any]", error.schema).get("properties", {})
    if rule == "required":
        missing = ", ".join(repr(name) for name in value if name not in found)
        return f": expected the name {missing}, got none"
    if rule == "additionalProperties" and isinstance(found, dict):
        unknown = _short(", ".join(repr(name) for name in found if name not in known))
        return f" has the unknown name {unknown}; expected only {', '.join(known)}"
    expected: dict[str, Callable[[], str]] = {
        "type": lambda: " or ".join([value] if isinstance(value, str) else value),
        "enum": lambda: textwrap.shorten(f"one of {', '.join(map(repr, value))}", _SHOWN_WORDS, placeholder=" …"),
        "const": lambda: repr(value),
        "pattern": lambda: f"text of the form {value}",
        "minimum": lambda: f"a number of at least {value}",
        "exclusiveMinimum": lambda: f"a number above {value}",
        "maximum": lambda: f"a number of at most {value}",
        "minLength": lambda: "some text",
        "minItems": lambda: "at least one entry",
    }
    return f": expected {expected[rule]()}, got {_shown(found)}"


def _shown(value: object) -> str:
    """Return a short text of a value for a message."""
    if isinstance(value, dict):
        return f"an object of {count(len(value), 'name')}"
    if isinstance(value, list):
        return f"an array of {count(len(value), 'entry')}"
    return _short("null" if value is None else repr(value))


def _short(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 4]} ..."


def _refuse(name: str, problem: str) -> NoReturn:
    msg = f"{name}: {problem}"
    raise ReportError(msg)


def read_report(path_or_text: str | bytes | os.PathLike[str]) -> Report:
    """Return the report that :meth:`~gradconform.Report.to_json` wrote: a path, or the text, which starts with ``{``.

    Raises :class:`~gradconform.ReportError` (a ``ValueError``) with the problem, its place and the expected value. It
    is raised for a file that cannot be read, is no JSON or does not meet the schema. It is also raised if counts,
    verdict or checks do not agree with the results and the contract.
    """
    name = named(path_or_text)
    values = _values(name, _text(path_or_text))
    _refuse_version(name, values)
    _refuse_other_values(name, values)
    unchanged = ("contract", "devices", "environment", "kit", "profile", "seed", "shard", "strict", "target", "waivers")
    report = Report(
        **{name: values[name] for name in (*unchanged, "options")},
        manifest=values["summary"]["manifest"],
        planned=values["summary"]["planned"],
        extra=tuple(values["extra"]),
        results=[Result.from_dict(result) for result in values["results"]],
        made=values.get("made"),
    )
    for problem in _problems(report, values):
        _refuse(name, f"{problem}; the file was edited; expected a report as the kit wrote it")
    return report


def _problems(report: Report, values: Mapping[str, Any]) -> Iterator[str]:
    yield from _beyond_bounds(report, values)
    yield from _of_results(report)
    yield from _of_shard(report)
    for field, counted in report.summary.items():
        reported = values["summary"][field]
        if reported != counted:
            yield f"summary.{field}: expected {counted} from the results, got {reported}"
    if not len(report.results) <= report.planned <= report.manifest:
        yield (
            f"expected results <= planned checks <= manifest, got {count(len(report.results), 'result')}, "
            f"{count(report.planned, 'planned check')} and a manifest of {report.manifest}"
        )
    for field, decided in report.decided.items():
        if values[field] != decided:
            yield f"{field}: expected {decided!r} from the results, got {values[field]!r}"
    held = None if report.extra else frozen(report.contract)
    if held is not None:
        yield from _against_the_contract(report, held)


def _fits(result: Result, check: FrozenCheck) -> bool:
    """Return whether a result fits the check: its level, the core, and the claims that it needs."""
    here = {claim for claim in result.unclaimed if not claim.startswith(("dtype ", "device "))}
    option = any(map(is_option, here)) and result.status in {"failed", "waived"}
    levels = {check.level, "SHOULD"} if option else {check.level}
    return result.core == check.core and here <= set(check.needs) and result.level in levels


def _of_results(report: Report) -> Iterator[str]:
    seen: dict[Place, int] = {}
    listed = [] if report.waivers is None else report.waivers["entries"]
    for position, result in enumerate(report.results):
        first = seen.setdefault(result.place, position)
        if first != position:
            yield f"results[{first}] and results[{position}] are both for {result.place.name}"
        problem = _status_problem(result) or _waiver_problem(result, listed)
        if problem:
            yield f"results[{position}] ({result.place.name}) {problem}"


def _beyond_bounds(report: Report, values: Mapping[str, Any]) -> Iterator[str]:
    for position, (result, given) in enumerate(zip(report.results, values["results"], strict=True)):
        if result.status != given["status"]:  # a result that cannot be is an error as soon as it is made
            ratio = f"expected error/bound of at most 1, got {result.error_ratio:.3g}"
            yield f"results[{position}] ({result.place.name}) is {given['status']}: {ratio}"


def _waiver_problem(result: Result, listed: Sequence[Mapping[str, Any]]) -> str | None:
    unlisted = result.waiver is not None and result.waiver not in listed
    return "names a waiver that the report does not list" if unlisted else None


def _of_shard(report: Report) -> Iterator[str]:
    if report.shard is None:
        return
    index, total, selected = (report.shard[name] for name in ("index", "count", "selected"))
    positions = report.shard["positions"]
    if index > total:
        yield f"shard.index is {index} of {count(total, 'shard')}"
    if len(positions) != report.planned or len(set(positions)) != len(positions):
        yield f"shard.positions: expected {count(report.planned, 'planned check')}, got {len(set(positions))}"
    if selected > report.manifest or any(position >= selected for position in positions):
        yield f"shard.selected is {selected} of a manifest of {report.manifest}, and a position is beyond one of them"


def _status_problem(result: Result) -> str | None:
    if result.status in {"failed", "waived", "error"} and result.kind is None:
        return f"is {result.status} and has no kind"
    of_device = (result.status, result.kind) == ("error", "device")
    if result.findings and not (of_device or result.status in {"failed", "waived"}):
        return f"is {result.status} and has findings"
    needs_waiver = result.status in {"waived", "unexpectedly_passed"}
    if needs_waiver and result.waiver is None:
        return f"is {result.status} and names no waiver"
    if result.waiver is not None and result.status in {"passed", "unsupported", "not_run"}:
        return f"is {result.status} and names a waiver"
    return None


def _against_the_contract(report: Report, contract: FrozenContract) -> Iterator[str]:
    held = PROFILES[: PROFILES.index(report.profile) + 1]
    size = sum(check.profile in held for check in contract.checks.values())
    cells = {(result.device, result.dtype) for result in report.results}
    if not size or report.manifest % size or report.manifest < size * len(cells):
        yield (
            f"summary.manifest: expected {size} checks of contract {report.contract}, profile {report.profile}, for "
            f"each of {len(cells)} devices and dtypes, got {report.manifest}"
        )
    for position, result in enumerate(report.results):
        check = contract.checks.get(result.check)
        if check is None:
            near = nearest(result.check, contract.checks)[:200]
            yield f"results[{position}].check: contract {report.contract} has no {result.check!r}; nearest: {near}"
        elif check.profile not in held:
            yield f"results[{position}]: {result.check} is in profile {check.profile}, not in {report.profile}"
        elif result.requirement != check.requirement or not _fits(result, check):
            yield f"results[{position}] does not match the requirement of {result.check} in contract {report.contract}"
