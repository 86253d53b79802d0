"""``--time-budget``: no check is begun once the time is spent, what was begun is finished, and the rest is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradconform.exits import RunRefusedError, RunStoppedError
from gradconform.run.planning import Planning, planning_within
from gradconform.run.time_budget import TimeBudget

#: A stage backward that takes a fifth of a second.
SLOW = """
import time
from gradconform.reference import split

def stage_backward(*args, **kwargs):
    time.sleep(0.2)
    return split.stage_backward(*args, **kwargs)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_run_stops_at_its_time_budget_and_can_be_resumed(tmp_path: Path, workers: str) -> None:
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    words = [sys.executable, "-m", "gradconform", "run"]
    first = [
        *words,
        "slow.py",
        "--checks",
        "full.gradients.[a-c]*",
        "-n",
        workers,
        "--time-budget",
        "4s",
        "--ndjson",
        "run.ndjson",
    ]
    done = subprocess.run(first, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = " ".join(done.stdout.split())
    assert done.returncode == 5, done.stderr
    assert "--time-budget of 4 s is used up; " in told
    records = [json.loads(line) for line in (tmp_path / "run.ndjson").read_text(encoding="utf-8").splitlines()]
    kept = sum(record["record"] == "result" for record in records)
    assert f"; {len(records[0]['places']) - kept} checks left to run" in told
    again = subprocess.run(
        [*words, "--resume", "run.ndjson", "-n", workers, "--json", "run.json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads((tmp_path / "run.json").read_text(encoding="utf-8"))
    assert report["summary"]["not_run"] == 0, again.stdout


def test_items_are_yielded_until_the_time_budget_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    budget, seen = TimeBudget(2.5), []
    for thing in budget.within(range(9)):
        seen.append(thing)
        now[0] += 1.0
    assert seen == [0, 1, 2]
    with pytest.raises(RunStoppedError, match=r"--time-budget of 2\.5 s is used up; 6 checks left to run"):
        budget.raise_if_left(9)
    budget.raise_if_left(3)


def test_without_a_time_budget_all_items_are_yielded() -> None:
    budget = TimeBudget(None)
    assert list(budget.within(range(3))) == [0, 1, 2]
    assert not budget.spent
    budget.raise_if_left(3)


def test_a_plan_ends_at_the_time_budget_and_reports_its_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.delenv("GRADCONFORM_WAIT_SECONDS", raising=False)
    with planning_within(TimeBudget(30.0)):
        planning = Planning("operations", 9)
        for done in range(3):
            planning.begin(done)
            now[0] += 6.0
        now[0] = 30.0
        with pytest.raises(RunRefusedError, match=r"3 of 9 operations are planned and kept; no check ran") as raised:
            planning.begin(3)
    assert raised.value.exit_code == 5
    assert capsys.readouterr().err == (
        "gradconform: planned 1 of 9 operations after 6 s\ngradconform: planned 2 of 9 operations after 12 s\n"
    )


def test_outside_a_run_a_plan_has_no_time_budget(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    Planning("operations", 9).begin(3)
    assert capsys.readouterr().err == "", "nothing is refused, and no time has passed to report"
