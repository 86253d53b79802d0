"""A run as records: written one by one, read again, and refused where they are none."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradconform.files.records import Header, RecordsError, as_line, finished, started
from gradconform.reading.record_file import read_run
from gradconform.results import Place, Result
from gradconform.run.execution import RecordFile

FIRST, SECOND = Place("full.gradients.mlp", "cpu", "float32"), Place("split.gradients.mlp", "cpu", "float32")
REPORT = {"profile": "quick", "target": {"name": "ours"}, "environment": {}, "seed": 20, "manifest": 2, "planned": 2}
HEADER = Header(report=REPORT, places=(FIRST, SECOND))

MISMATCH = {
    **dict.fromkeys(("error", "bound", "headroom", "cause", "raised", "needs")),
    "kind": "mismatch",
    "where": "input 0",
    "action": "B0",
    "text": "it differs",
    "sort": "input gradient",
}


def result_of(place: Place, **values: Any) -> Result:
    return Result(**{"level": "MUST", "status": "passed", "requirement": "It MUST.", **place._asdict(), **values})


def written(path: Path, *results: Result, ended: bool = False) -> str:
    with closing(RecordFile(str(path))) as file:
        file.begin(HEADER)
        for result in results:
            file.write(started(result))
            file.add(result)
        if ended:
            file.end("conforms")
    return str(path)


def test_written_results_are_read_back_in_plan_order(tmp_path: Path) -> None:
    wrong = result_of(FIRST, status="failed", message="line 1\nline 2\x85…", findings=(MISMATCH,))
    run = read_run(written(tmp_path / "run.ndjson", result_of(SECOND), wrong, ended=True))
    assert run.header == HEADER
    assert run.report().results == [wrong, result_of(SECOND)]
    assert (run.ended, run.missing, run.started) == (True, [], None)
    assert run.report().verdict == "does not conform"


def test_a_file_cut_anywhere_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "run.ndjson", result_of(FIRST), result_of(SECOND), ended=True))
    content = path.read_bytes()
    first = content.index(b"\n") + 1
    for size in range(first, len(content)):
        path.write_bytes(content[:size])
        run = read_run(path)
        whole = content[: content.rfind(b"\n", 0, size) + 1]
        assert len(run.results) == whole.count(b'"record":"result"')
        assert not run.ended
    for size in (0, 1, first - 1):
        path.write_bytes(content[:size])
        with pytest.raises(RecordsError, match="line 1: expected a record 'run'"):
            read_run(path)


def test_an_item_that_started_and_has_no_result_is_named(tmp_path: Path) -> None:
    with closing(RecordFile(str(tmp_path / "run.ndjson"))) as file:
        file.begin(HEADER)
        file.add(result_of(FIRST))
        file.write(started(result_of(SECOND)))
    run = read_run(file.path)
    assert (run.started, run.missing) == (SECOND, [SECOND])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense\n", "line 2: Expecting value"),
        (b"[1]\n", "line 2: expected a JSON object, got [1]"),
        (b'{"record": "other"}\n', "line 2: expected a record of a run, got {'record': 'other'}"),
        (b'{"record": "result"}\n', "line 2: not a valid result: "),
        (b'{"record": "started", "check": 3}\n', "line 2: expected a string, got 3"),
        (b'{"record": "\xff"}\n', "line 2: 'utf-8' codec"),
        (b"[" * 100_000 + b"\n", "line 2: "),
        (as_line(finished(result_of(Place("full.loss.mlp", "cpu", "float32")))), "the first line does not plan it"),
        (
            as_line({**finished(result_of(FIRST)), "speed": 3}),
            "not a valid result: the result has the unknown name 'speed'",
        ),
        (
            as_line({**finished(result_of(FIRST)), "repeats_bit_equal": [True]}),
            "not a valid result: repeats_bit_equal: expected boolean or null, got an array of 1 entry",
        ),
        (as_line(finished(result_of(FIRST))).replace(b"0.0", b"NaN"), "line 2: expected a number or null, got NaN"),
        (
            as_line(finished(result_of(FIRST))).replace(b"0.0", b"9" * 99),
            "line 2: expected numbers of at most 20 digits, got 999999",
        ),
    ],
)
def test_an_invalid_record_is_reported_with_its_line(tmp_path: Path, line: bytes, said: str) -> None:
    path = Path(written(tmp_path / "run.ndjson"))
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(RecordsError) as raised:
        read_run(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other"}, "expected a record 'run' of gradconform-records"),
        ({"schema_version": 99}, "reads; got 99"),
        ({"places": [["a", "b"]]}, "cannot read"),
        ({"places": 3}, "cannot read"),
        ({"report": {"profile": "quick"}}, "cannot read"),
        ({"report": {**REPORT, "speed": 3}}, "unexpected keyword argument 'speed'"),
    ],
)
def test_a_first_line_of_another_kind_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "run.ndjson"
    path.write_text(json.dumps({**HEADER.to_record(), **change}) + "\n", encoding="utf-8")
    with pytest.raises(RecordsError) as raised:
        read_run(path)
    assert said in str(raised.value)


def test_two_runs_cannot_write_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "run.ndjson")
    with closing(RecordFile(path)) as file:
        file.begin(HEADER)
        for resume in (False, True):
            with pytest.raises(RecordsError, match="another run is writing to"):
                RecordFile(path, resume=resume)
        file.end("conforms")
    RecordFile(path).close()


def test_results_of_an_unfinished_run_are_not_overwritten(tmp_path: Path) -> None:
    path = written(tmp_path / "run.ndjson", result_of(FIRST))
    with pytest.raises(RecordsError, match=r"unfinished run \(1 of 2 results\); continue it with 'gradconform"):
        RecordFile(path)
    notes = tmp_path / "notes.txt"
    notes.write_text("mine\n", encoding="utf-8")
    with pytest.raises(RecordsError, match="line 1: "):
        RecordFile(str(notes))
    assert notes.read_text(encoding="utf-8") == "mine\n"


def test_a_resumed_run_loses_only_the_truncated_line(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "run.ndjson", result_of(FIRST)))
    path.write_bytes(path.read_bytes() + b'{"record": "resu')
    with closing(RecordFile(str(path), resume=True)) as file:
        assert file.found is not None
        assert file.found.missing == [SECOND]
        file.begin(HEADER)
        file.add(result_of(SECOND))
        file.end("conforms")
    run = read_run(path)
    assert (list(run.results), run.ended) == ([FIRST, SECOND], True)


def test_a_run_that_never_started_does_not_change_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.ndjson"
    RecordFile(str(path)).close()
    assert not path.exists()
    before = Path(written(path, result_of(FIRST), result_of(SECOND), ended=True)).read_bytes()
    RecordFile(str(path)).close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("path", ["nowhere/run.ndjson", ".", "/dev/null", ""])
def test_an_unwritable_path_is_refused_when_it_is_opened(tmp_path: Path, path: str) -> None:
    with pytest.raises(RecordsError, match=r"cannot open .* for writing|not a regular file"):
        RecordFile(str(tmp_path / path) if path == "." else path)


def test_reporting_modules_do_not_import_torch() -> None:
    script = """
import sys
import gradconform.files.records, gradconform.run.execution, gradconform.results
import gradconform.report.terminal, gradconform.cli.progress
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
