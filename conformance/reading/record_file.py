"""Reading of a run's records: each result has the form of the report's schema, so the records make a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path

from gradconform.files.records import Header, Record, RecordsError, as_result, beginning, place_of
from gradconform.files.user_files import LARGEST_REPORT, LONGEST_TEXT, content, line_of_long_text
from gradconform.results import Place, Report, Result

from .mistaken_files import instead_of_records
from .report import problem_of, values_of


@dataclass(slots=True, kw_only=True)
class RecordedRun:
    """A run that was read from a file.

    ``started`` is the item that had begun and has no result. ``whole`` is the number of bytes in whole lines of the
    file. ``ended`` says that the run finished.
    """

    path: Path
    header: Header
    results: dict[Place, Result] = field(default_factory=dict)
    started: Place | None = None
    ended: bool = False
    whole: int = 0

    @property
    def missing(self) -> list[Place]:
        """Return the planned items without a result, in the order of the plan."""
        return [place for place in self.header.places if place not in self.results]

    def report(self) -> Report:
        """Return the report on the items with a result."""
        return self.header.report_of(self.results)


def read_run(path: str | Path) -> RecordedRun:
    """Return the run in a file of records. An incomplete last line is dropped: its writer was killed.

    Raises :class:`~gradconform.files.records.RecordsError` that names the file, the line and the problem.
    """
    where = Path(path)
    try:
        held = content(where, LARGEST_REPORT)
    except OSError as error:
        msg = f"cannot read {str(path)!r}: {error.strerror}; expected a file that --ndjson wrote"
        raise RecordsError(msg) from error
    if (long := line_of_long_text(held)) is not None:
        msg = f"{str(path)!r}, line {long}: expected texts of at most {LONGEST_TEXT} bytes, got a longer one"
        raise RecordsError(msg)
    whole = held.rfind(b"\n") + 1
    lines = held[:whole].splitlines() or [b"{}"]
    number = 1
    try:
        run = RecordedRun(path=where, header=Header.from_record(_record(lines[0])), whole=whole)
        known = frozenset(run.header.places)
        for number, line in enumerate(lines[1:], 2):  # noqa: B007 (named in the error)
            _take(run, _record(line), known)
    except (ValueError, TypeError, RecursionError) as error:
        other = instead_of_records(held)
        expected = "; expected a record that --ndjson wrote" if isinstance(error, JSONDecodeError) else ""
        msg = f"{str(path)!r} {other}" if other else f"{str(path)!r}, line {number}: {error}{expected}"
        raise RecordsError(msg) from error
    return run


def _take(run: RecordedRun, record: Record, known: frozenset[Place]) -> None:
    """Add the contents of one record."""
    kind = record.get("record")
    if kind == "result":
        result = _result(record)
        place = result.place
        if place not in known:
            msg = f"unexpected result of {place.name}: the first line does not plan it"
            raise RecordsError(msg)
        run.results[place] = result
        run.started = None
    elif kind == "started":
        run.started = place_of(record)
    elif kind == "end":
        run.ended = True
    elif kind != "resumed":
        msg = f"expected a record of a run, got {beginning(record)}"
        raise RecordsError(msg)


def _result(record: Record) -> Result:
    problem = problem_of({name: value for name, value in record.items() if name != "record"}, "result")
    if problem is not None:
        msg = f"not a valid result: {problem}"
        raise RecordsError(msg)
    return as_result(record)


def _record(line: bytes) -> Record:
    record = values_of(line.decode())
    if not isinstance(record, dict):
        msg = f"expected a JSON object, got {beginning(record)}"
        raise RecordsError(msg)
    return record
