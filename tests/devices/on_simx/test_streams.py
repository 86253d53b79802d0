"""Backwards that are issued on a side stream, on simx; test_cuda.py has the same on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradconform.drive import operation_log
from gradconform.plugins.devices.simx import inject
from gradconform.results import Report
from gradconform.run.run import check_stage_backward

DEVICES = Path(__file__).parents[1]
CHECKS = ("full.gradients.*", "split.gradients.*")


def judged(target: str, checks: tuple[str, ...] = CHECKS) -> Report:
    """Judge a target where what a stream computes is late for all others."""
    with inject(late_streams="1"):
        return check_stage_backward(str(DEVICES / target), device="simx:0", profile="quick", checks=list(checks))


def test_a_backward_on_a_side_stream_that_the_caller_waits_for_is_right() -> None:
    report = judged("side_stream.py")
    assert {result.status for result in report.results} == {"passed"}
    assert report.results


def test_weight_gradients_on_a_side_stream_that_nothing_waits_for_are_a_race() -> None:
    report = judged("racing_stream.py")
    failed = [result for result in report if result.status == "failed"]
    assert {result.check for result in failed} == {r.check for r in report if r.check.startswith("split.")}
    assert {(result.level, result.kind) for result in failed} == {("MUST", "race")}
    assert all("another stream still writes it when W0 returns" in result.message for result in failed)


def test_without_a_late_stream_nothing_is_a_race() -> None:
    target = str(DEVICES / "racing_stream.py")
    report = check_stage_backward(target, device="simx:0", profile="quick", checks=["split.gradients.mlp"])
    assert {result.status for result in report} == {"passed"}


def test_a_stream_of_cuda_that_is_not_the_callers_is_kept_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[int] = []
    monkeypatch.setattr(operation_log, "sleep_of", lambda _: slept.append)
    judged("racing_stream.py", ("split.gradients.mlp",))
    assert len(slept) == 2  # once in each W
    slept.clear()
    check_stage_backward("reference-split", device="simx:0", checks=["split.gradients.mlp"])
    assert slept == []
