"""A run as a stream of records, one JSON object per line: it survives a crash, and workers send it to the parent.

===========  ============================================================================================
record       meaning
===========  ============================================================================================
``run``      the first line: the target, options and devices, and every planned item (:class:`Header`)
``started``  an item begins: check, device, dtype, and the known fields of its result, such as level and requirement
``result``   the result of an item, as :meth:`gradconform.results.Result.to_dict` gives it
``resumed``  another process continues the run; ``results`` counts the results so far
``end``      the last line, written if every planned item has a result
===========  ============================================================================================

A killed run has no ``end``, and its last line may be cut off. :mod:`gradconform.reading.record_file` reads the records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from gradconform.exits import EXIT_USAGE, UsageError
from gradconform.results import Place, Report, Result
from gradconform.version import KIT_VERSION

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SCHEMA = "gradconform-records"
SCHEMA_VERSION = 1

Record = Mapping[str, Any]

#: The fields of a result that are known before its check runs.
_STARTED = (*Place._fields, "level", "requirement", "core", "unclaimed")


class RecordsError(UsageError):
    """A record file cannot be read or written; ``exit_code`` is the exit code of the command."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        """Create the error with its message and exit code."""
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The description of a run before anything has run.

    ``report`` holds the fields of a report without results, ``places`` all items in the order of the plan. ``measured``
    holds the measurements for the plan as JSON values, so no other process of the run measures them again. ``files``
    holds the SHA-256 of each file that the run loads by path; it is empty in records of an older kit. ``paces`` holds
    the seconds of a step on each device of a run that judges devices (:mod:`gradconform.devices.pace`).
    """

    report: Mapping[str, Any]
    places: tuple[Place, ...]
    measured: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    paces: Mapping[str, float] = field(default_factory=dict)
    kit: str = KIT_VERSION

    @property
    def cells(self) -> list[tuple[str, str]]:
        """The devices and dtypes of the run, in the order of the plan."""
        return list(dict.fromkeys((place.device, place.dtype) for place in self.places))

    @property
    def fixed(self) -> dict[str, Any]:
        """The values that stay fixed while a run continues, without start time and repository changes."""
        fixed = {name: value for name, value in self.report.items() if name != "made"}
        target = fixed.get("target")
        if isinstance(target, Mapping):
            fixed["target"] = {name: value for name, value in target.items() if name != "commit"}
        return fixed

    def report_of(self, results: Mapping[Place, Result]) -> Report:
        """Return the report with ``results``, in the order of the plan."""
        start = {**self.report, "extra": tuple(self.report.get("extra", ()))}
        return Report(**start, results=[results[place] for place in self.places if place in results])

    def to_record(self) -> dict[str, Any]:
        """Return the record ``run``."""
        return {
            "record": "run",
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "kit": self.kit,
            "report": dict(self.report),
            "places": [list(place) for place in self.places],
            **({"measured": dict(self.measured)} if self.measured else {}),
            **({"files": dict(self.files)} if self.files else {}),
            **({"paces": dict(self.paces)} if self.paces else {}),
        }

    @classmethod
    def from_record(cls, record: Record) -> Header:
        """Return the header from :meth:`to_record`; raise :class:`RecordsError` for an invalid record."""
        if record.get("record") != "run" or record.get("schema") != SCHEMA:
            msg = f"expected a record 'run' of {SCHEMA}, got {beginning(record)}"
            raise RecordsError(msg)
        if record.get("schema_version") != SCHEMA_VERSION:
            msg = (
                f"expected schema version {SCHEMA_VERSION}, which gradconform {KIT_VERSION} reads; "
                f"got {record.get('schema_version')!r}"
            )
            raise RecordsError(msg)
        try:
            header = cls(
                report=record["report"],
                places=tuple(Place(*map(_text, place)) for place in record["places"]),
                measured=dict(record.get("measured", {})),
                files={_text(name): _text(digest) for name, digest in dict(record.get("files", {})).items()},
                paces={_text(name): float(seconds) for name, seconds in dict(record.get("paces", {})).items()},
                kit=_text(record["kit"]),
            )
            header.report_of({})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"cannot read the record 'run': {type(error).__name__}: {error}"
            raise RecordsError(msg) from error
        return header


def header_of(
    report: Report, places: tuple[Place, ...], measured: Mapping[str, Any], files: Mapping[str, str]
) -> Header:
    """Return the header of the run whose empty report is ``report``, with what was ``measured`` for its plan.

    ``files`` are those that the run loads by path, each with its SHA-256.
    """
    start = {one.name: getattr(report, one.name) for one in fields(Report) if one.init and one.name != "results"}
    # Through JSON: torch's version is a subclass of str, and a tuple becomes a list.
    return Header(report=json.loads(json.dumps(start)), places=places, measured=measured, files=files)


def differing(before: Any, now: Any, name: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the values that differ between nested mappings, both values by dotted name."""
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return {} if before == now else {name: (before, now)}
    found: dict[str, tuple[Any, Any]] = {}
    for key in {**before, **now}:
        found |= differing(before.get(key), now.get(key), f"{name}.{key}".strip("."))
    return found


def as_json(value: DataclassInstance) -> dict[str, Any]:
    """Return the fields of a dataclass, and of nested ones, as JSON values."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(value)))
    return values


def tupled(values: Any) -> Any:
    """Return JSON values with tuples instead of arrays, as frozen dataclasses hold them."""
    if isinstance(values, Mapping):
        return {name: tupled(value) for name, value in values.items()}
    return tuple(map(tupled, values)) if isinstance(values, list) else values


def started(begun: Result) -> dict[str, Any]:
    """Return the record that an item begins, with its result as ``not_run``."""
    values = begun.to_dict()
    return {"record": "started", **{name: values[name] for name in _STARTED}}


def finished(result: Result) -> dict[str, Any]:
    """Return the record of a result."""
    return {"record": "result", **result.to_dict()}


def as_result(record: Record) -> Result:
    """Return the result in a record ``result``; raise :class:`RecordsError` if it holds none."""
    try:
        result = Result.from_dict({name: value for name, value in record.items() if name != "record"})
        place_of(record)
    except (TypeError, ValueError, AttributeError) as error:
        msg = f"not a valid result: {error}: {beginning(record)}"
        raise RecordsError(msg) from error
    return result


def place_of(record: Record) -> Place:
    """Return the place of a record's item in the run; raise ``TypeError`` if its fields are not texts."""
    return Place(*(_text(record.get(name)) for name in Place._fields))


def as_line(record: Record) -> bytes:
    """Return a record as one line of standard JSON in ASCII, so a line break in a message cannot end it."""
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _text(value: object) -> str:
    if not isinstance(value, str):
        msg = f"expected a string, got {value!r}"
        raise TypeError(msg)
    return value


def beginning(value: object) -> str:
    """Return the beginning of a record's value, for a message."""
    return repr(value)[:120]
