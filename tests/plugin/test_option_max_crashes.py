"""``--gradconform-max-crashes N``: how many workers of pytest-xdist a target may crash."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

Judge = Callable[..., pytest.RunResult]

ENDS = """
import os

def stage_backward(stage_output, output_grads, input_values, outputs_with_grads_idxs=None):
    os._exit(7)
"""


def test_a_target_that_ends_every_worker_stops_at_max_crashes(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ends=ENDS)
    words = ("-n1", "--gradconform-max-crashes=2", "--gradconform-json=report.json")
    result = judge(*words, target="ends.py", checks=("full.gradients.*",))
    report = json.loads((pytester.path / "report.json").read_text())
    assert [found["ended"] for found in report["results"]] == ["crash", "crash"]
    assert result.ret != pytest.ExitCode.OK
    left = report["summary"]["not_run"]
    last = report["results"][-1]["check"]
    assert re.search(
        rf"2 checks crashed \(the last: {re.escape(last)}\).*; --max-crashes allows 2; {left} checks were not run",
        " ".join(result.stdout.str().split()),
    )


def test_max_worker_restart_of_xdist_overrides_max_crashes(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(ends=ENDS)
    words = ("-n1", "--max-worker-restart=0", "--gradconform-max-crashes=9", "--gradconform-json=report.json")
    judge(*words, target="ends.py", checks=("full.gradients.*",))
    assert len(json.loads((pytester.path / "report.json").read_text())["results"]) == 1


def test_an_invalid_count_is_refused(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCONFORM_MAX_CRASHES", "none")
    result = judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*gradconform_max_crashes: expected a whole number of at least 1, got 'none'"])
