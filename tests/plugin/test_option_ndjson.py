"""``--gradconform-ndjson PATH``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from gradconform.files.records import RecordsError
from gradconform.reading.record_file import read_run
from gradconform.run.execution import RecordFile

#: See conftest.py.
IN_TWO = True

Judge = Callable[..., pytest.RunResult]


def test_each_result_is_recorded_and_the_records_equal_the_report(
    judge: Judge, pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    result = judge("--gradconform-ndjson=run.ndjson", "--gradconform-json=report.json", *processes)
    run = read_run(pytester.path / "run.ndjson")
    assert run.ended
    assert run.report().to_dict() == json.loads((pytester.path / "report.json").read_text())
    off = "gradconform: isolation is off, a crash or hang of the target ends this session; pytest -n 1 isolates"
    assert (off in result.stdout.str()) == (processes != ("-n2",))


def test_the_command_resumes_a_session_that_stopped_early(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_NDJSON", "run.ndjson")
    judge("-k", "full")
    assert [place.check for place in read_run(pytester.path / "run.ndjson").missing] == ["split.gradients.mlp"]
    refused = judge()
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*run.ndjson' contains an unfinished run (1 of 2 results); continue it with *"])
    resumed = pytester.run(sys.executable, "-m", "gradconform", "run", "--resume", "run.ndjson")
    assert resumed.ret == 5
    run = read_run(pytester.path / "run.ndjson")
    assert (run.ended, [result.status for result in run.results.values()]) == (True, ["passed", "passed"])


def test_an_unwritable_path_is_refused_before_anything_runs(judge: Judge) -> None:
    result = judge("--gradconform-ndjson=nowhere/run.ndjson")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--gradconform-ndjson: cannot open *nowhere/run.ndjson' for writing: No such *"])


def test_one_file_for_report_and_records_is_refused(judge: Judge) -> None:
    result = judge("--gradconform-ndjson=run.json", "--gradconform-json=run.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--gradconform-ndjson and --gradconform-json name the same file, *run.json'; change *"]
    )


def full_from(written: int) -> Callable[..., None]:
    """Return what stands for writing a record on a disk with room for so many."""
    write, records = RecordFile.write, 0

    def limited(file: RecordFile, record: object) -> None:
        nonlocal records
        records += 1
        if records > written:
            msg = "no room"
            raise RecordsError(msg)
        write(file, record)  # type: ignore[arg-type] (whatever a record file is given)

    return limited


@pytest.mark.parametrize("written", [1, 3], ids=["a result", "the end"])
def test_a_full_disk_ends_the_session_with_a_message(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    monkeypatch.setattr(RecordFile, "write", full_from(written))
    result = judge("--gradconform-ndjson=run.ndjson")
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["*no room*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*INTERNALERROR*")
