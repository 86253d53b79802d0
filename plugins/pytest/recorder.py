"""Collects the results of runs in the reporting process, from all processes; writes reports and the summary."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradconform.files.records import RecordsError
from gradconform.files.user_files import replace_file
from gradconform.report.detail import Detail
from gradconform.report.lines import Line, Role
from gradconform.report.terminal import closing, opening
from gradconform.results import Report, Result
from gradconform.run.canaries import withdrawn
from gradconform.run.execution import RecordFile
from gradconform.text.counts import count
from gradconform.text.escaping import for_terminal, line_for_terminal

from .option_names import ZERO_LINES

if TYPE_CHECKING:
    from .contract_run import ContractRun

_MARKUP: dict[Role, dict[str, bool]] = {
    "plain": {},
    "heading": {"bold": True},
    "good": {"green": True, "bold": True},
    "bad": {"red": True, "bold": True},
    "warning": {"yellow": True, "bold": True},
    "faint": {"light": True},
}


@dataclass(slots=True)
class RunRecord:
    """The results of one run so far, by position in its plan."""

    header: Mapping[str, Any]
    results: dict[int, Result] = field(default_factory=dict)

    @property
    def added(self) -> bool:
        """Whether this is the run of added stages, which are not part of the contract."""
        return bool(self.header["kind"] == "added")

    @property
    def cells(self) -> list[tuple[str, str]]:
        """The devices and dtypes of the run."""
        return [(device, dtype) for device, dtype in self.header["cells"]]

    def report(self) -> Report:
        """Return the report with its results in the order of the plan."""
        return Report(**self.header["report"], results=[self.results[position] for position in sorted(self.results)])


class Recorder:
    """All runs of one pytest session, in the order in which they were announced."""

    def __init__(self) -> None:
        self._runs: dict[str, RunRecord] = {}

    def expect(self, header: Mapping[str, Any]) -> RunRecord:
        """Register a run, so that it is reported even if none of its checks runs."""
        return self._runs.setdefault(str(header["key"]), RunRecord(header))

    def add(self, payload: Mapping[str, Any]) -> list[Result]:
        """Add the result in a test's report; a second result of a check replaces the first.

        Returns it, and the results of the same process that it withdraws, as they are now.
        """
        results = self.expect(payload["run"]).results
        results[payload["position"]] = Result.from_dict(payload["result"])
        positions = [payload["position"]]
        if (withdraws := payload.get("withdraws")) is not None:
            for position in withdraws["positions"]:
                results[position] = withdrawn(results[position], withdraws["reason"])
                positions.append(position)
        return [results[position] for position in positions]

    def __iter__(self) -> Iterator[RunRecord]:
        """Iterate over the runs."""
        return iter(self._runs.values())

    def __bool__(self) -> bool:
        """Return whether there is a run."""
        return bool(self._runs)

    @property
    def judged_too_little(self) -> bool:
        """Whether a run of the contract has all results without a verdict, or ``--gradconform`` has no results."""
        reports = {key: run.report() for key, run in self._runs.items() if not run.added and run.results}
        nothing = ZERO_LINES in reports and not reports[ZERO_LINES].summary["ran"]
        return nothing or any(report.coverage is not None and bool(report.lacks) for report in reports.values())

    @property
    def has_unused_waivers(self) -> bool:
        """Whether a waiver matched no result in a whole run of profile ``full``."""
        return any(run.report().unused_waivers for run in self._runs.values() if not run.added)

    def write(self, path: Path) -> list[Path]:
        """Write one JSON report per run of the contract: ``path``, then ``path`` with ``-2`` in its name, and so on.

        Raises ``OSError`` if one cannot be written; an existing file is then not changed.
        """
        written: list[Path] = []
        for number, run in enumerate((run for run in self._runs.values() if not run.added), 1):
            to = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
            replace_file(str(to), run.report().to_json())
            written.append(to)
        return written


class RecordKeeper:
    """The records file of one run. A full disk ends the session at once."""

    def __init__(self, path: str, run: ContractRun) -> None:
        """Open the file and write its first line; raise ``pytest.UsageError`` on failure."""
        try:
            self._file = RecordFile(path)
            self._file.begin(replace(run.run.header(), report=run.header["report"]))
        except RecordsError as error:
            raise pytest.UsageError(for_terminal(f"--gradconform-ndjson: {error}")) from error
        self._key, self._full = run.header["key"], False

    def add(self, key: str, result: Result) -> None:
        """Append a result of the run ``key``, if it is the recorded run."""
        if key == self._key:
            try:
                self._file.add(result)
            except RecordsError as error:
                self._full = True
                pytest.exit(f"--gradconform-ndjson: {error}", pytest.ExitCode.INTERNAL_ERROR)

    def close(self, report: Report | None) -> None:
        """Close the file; a report with all planned results is its last record.

        Raises :class:`~gradconform.files.records.RecordsError` if it cannot be written.
        """
        with contextlib.closing(self._file):
            done = report is not None and len({result.place for result in report.results}) == report.planned
            if report is not None and done and not self._full:
                self._file.end(report.verdict)


def write_summary(
    terminal: pytest.TerminalReporter, recorder: Recorder, written: Sequence[Path], unwritten: Sequence[str]
) -> None:
    """Write one section per run; a run of added stages has failures, but no verdict on the contract."""
    detail = Detail(terminal.verbosity)
    width = min(terminal._tw.fullwidth, 120)  # noqa: SLF001 (pytest offers no other way to ask)
    for run in recorder:
        report = run.report()
        if run.added:
            terminal.write_sep("=", line_for_terminal(f"gradconform: {run.header['key']}"))
            _write(terminal, _added(run))
            continue
        terminal.write_sep("=", "gradconform")
        _write(terminal, [*opening(report, run.cells, width), *closing(report, width, detail=detail)])
    for path in written:
        terminal.write_line(line_for_terminal(f"gradconform: JSON report in {path}"))
    for problem in unwritten:
        terminal.write_line(line_for_terminal(problem), red=True)


def _added(run: RunRecord) -> list[Line]:
    counts = run.report().summary
    counted = ", ".join(
        f"{counts[status]} {status}" for status in ("passed", "failed", "unsupported", "error", "not_run")
    )
    failures = [
        Line(line, "bad")
        for result in run.report().failures
        for line in f"{result.check} [{result.device} {result.dtype}]: {result.message}".split("\n")
    ]
    text = f"{count(counts['planned'], 'check')} on added stages, not part of the contract: {counted.replace('_', ' ')}"
    return [*failures, Line(text)]


def _write(terminal: pytest.TerminalReporter, lines: Sequence[Line]) -> None:
    for line in lines:
        terminal.write_line(line_for_terminal(line.text), **_MARKUP[line.role])
