"""``--gradconform-ndjson PATH``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from gradconform.records import read_run

Judge = Callable[..., pytest.RunResult]


def test_each_result_is_kept_and_the_file_is_the_report(
    judge: Judge, pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    result = judge("--gradconform-ndjson=run.ndjson", "--gradconform-json=report.json", *processes)
    run = read_run(pytester.path / "run.ndjson")
    assert run.ended
    assert run.report().to_dict() == json.loads((pytester.path / "report.json").read_text())
    off = "gradconform: isolation is off, a crash or hang of the target ends this session; pytest -n 1 isolates"
    assert (off in result.stdout.str()) == (processes != ("-n2",))


def test_a_session_that_stopped_early_is_gone_on_with_by_the_command(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_NDJSON", "run.ndjson")
    judge("-k", "full")
    assert [place.check for place in read_run(pytester.path / "run.ndjson").missing] == ["split.gradients.mlp"]
    refused = judge()
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines(["*run.ndjson' holds a run that did not end (1 of 2 results); go on with it by *"])
    resumed = pytester.run(sys.executable, "-m", "gradconform", "run", "--resume", "run.ndjson")
    assert resumed.ret == 5
    run = read_run(pytester.path / "run.ndjson")
    assert (run.ended, [result.status for result in run.results.values()]) == (True, ["passed", "passed"])


def test_a_path_that_cannot_be_written_is_refused_before_anything_runs(judge: Judge) -> None:
    result = judge("--gradconform-ndjson=nowhere/run.ndjson")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--gradconform-ndjson: *nowhere/run.ndjson' cannot be opened for writing: No such *"])
