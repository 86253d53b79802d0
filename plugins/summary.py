"""The terminal summary: what was judged, the failures by cause, the count against the manifest, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gradconform.plugins.recorder import Recorder, RunRecord
from gradconform.report.lines import Line, Role
from gradconform.report.terminal import closing, opening

_MARKUP: dict[Role, dict[str, bool]] = {
    "plain": {},
    "heading": {"bold": True},
    "good": {"green": True, "bold": True},
    "bad": {"red": True, "bold": True},
    "warning": {"yellow": True, "bold": True},
    "faint": {"light": True},
}


def write_summary(terminal: pytest.TerminalReporter, recorder: Recorder, written: Sequence[Path]) -> None:
    """Write one section per run; a run of added stages has failures, but no verdict on the contract."""
    width = min(terminal._tw.fullwidth, 120)  # noqa: SLF001 (pytest offers no other way to ask)
    for run in recorder:
        report = run.report()
        if run.added:
            terminal.write_sep("=", f"gradconform: {run.header['key']}")
            _write(terminal, _added(run))
            continue
        terminal.write_sep("=", "gradconform")
        _write(terminal, [*opening(report, run.cells, width), *closing(report, width)])
    for path in written:
        terminal.write_line(f"gradconform: JSON report in {path}")


def _added(run: RunRecord) -> list[Line]:
    counts = run.report().summary
    told = ", ".join(f"{counts[status]} {status}" for status in ("passed", "failed", "unsupported", "error", "not_run"))
    failures = [
        Line(f"{result.check} [{result.device} {result.dtype}]: {result.message}", "bad")
        for result in run.report().failures
    ]
    count = f"{counts['planned']} checks on added stages, no part of the contract: {told.replace('_', ' ')}"
    return [*failures, Line(count)]


def _write(terminal: pytest.TerminalReporter, lines: Sequence[Line]) -> None:
    for line in lines:
        terminal.write_line(line.text, **_MARKUP[line.role])
