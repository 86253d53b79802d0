"""``--time-budget``: no check is begun once the time is spent, what was begun is finished, and the rest is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gradconform.exits import RunStoppedError
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
