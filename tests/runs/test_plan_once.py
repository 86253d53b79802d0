"""What a plan measures of samples is measured once in a run: workers and resumed runs read it as data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform.contract import on_operation
from gradconform.contract.on_operation import asked_of
from gradconform.fixtures.operations.measured import MeasuredError, outcomes_of, to_json

#: Imported by every worker before it plans. Whoever measures a sample there that was planned finds it unstable.
UNSTABLE = """
import os
from gradconform.contract import on_operation

measured = on_operation.judgeable

def judgeable(entry, number):
    if os.environ.get("GRADCONFORM_WORKER") != os.environ["MEASURES"]:
        return "give other values each time"
    return measured(entry, number)

on_operation.judgeable = judgeable
"""


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command on operations, with the plugin, in a process of its own."""
    (tmp_path / "unstable.py").write_text(UNSTABLE, encoding="utf-8")

    def command(*words: str, measures: str = "0") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gradconform", "run", *words],
            cwd=tmp_path,
            env={**os.environ, "MEASURES": measures, "PYTHONPATH": str(tmp_path), "COLUMNS": "100"},
            capture_output=True,
            text=True,
            check=False,
        )

    return command


ASKED = ("reference-split", "--device-plugin", "unstable", "--operation", "erf,sin", "--profile", "quick")


def as_values(asked: on_operation.OnOperations) -> list[Any]:
    """Return what tells one plan from another."""
    cases = [(check.id, repr(trial.stages)) for check in asked.checks for trial in check.trials]
    return [cases, asked.told, asked.nodes, asked.left_out]


def test_a_plan_made_of_what_another_measured_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["abs", "cumprod", "nn.functional.dropout", "unique", "bernoulli", "empty_like"]
    names = [name for name in names if name in on_operation.entries()]
    first = asked_of(names, "quick")
    written = json.loads(json.dumps(to_json(first.outcomes)))

    def measure(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(on_operation, "judgeable", measure)
    again = asked_of(names, "quick", written)
    assert as_values(again) == as_values(first)
    assert to_json(again.outcomes) == written


@pytest.mark.parametrize(
    "values", [[[0, "some other reason"]], [[0, {"shapes": [[2]]}]], [["x", "raise on the CPU"]], 3], ids=repr
)
def test_what_was_not_written_by_a_plan_is_refused(values: object) -> None:
    with pytest.raises(MeasuredError, match="what was measured of 'abs' cannot be read"):
        outcomes_of({"abs": values}, "abs")


@pytest.mark.slow
def test_a_worker_that_would_measure_something_else_runs_the_plan_of_the_first(
    run: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run(*ASKED, "--operation", "a*", "-n", "2")  # so many that both workers are needed
    assert (done.returncode, done.stderr) == (0, "")
    assert "no verdict on contract" in done.stdout
    assert "samples left out" not in done.stdout


@pytest.mark.slow
def test_a_run_that_is_gone_on_with_measures_nothing_again(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run(*ASKED, "--ndjson", "run.ndjson")
    lines = (tmp_path / "run.ndjson").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "run.ndjson").write_text("".join(lines[:3]), encoding="utf-8")  # the header and one result
    done = run("--resume", "run.ndjson", measures="none of them")
    assert (done.returncode, done.stderr) == (0, "")
    assert "4 of 4 checks passed" in done.stdout


@pytest.mark.slow
def test_a_damaged_plan_in_the_records_is_refused(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    run(*ASKED, "--ndjson", "run.ndjson")
    header, *rest = (tmp_path / "run.ndjson").read_text(encoding="utf-8").splitlines(keepends=True)
    values = json.loads(header)
    values["measured"]["erf"] = [[0, "some other reason"]]
    (tmp_path / "run.ndjson").write_text("".join([json.dumps(values) + "\n", *rest[:2]]), encoding="utf-8")
    done = run("--resume", "run.ndjson")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradconform: what was measured of 'erf' cannot be read: ValueError: 'some other")
