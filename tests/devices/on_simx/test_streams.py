"""Backwards that are issued on a side stream, on simx; test_cuda.py has the same on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

from gradconform.adapter import StageSpec
from gradconform.contract import checks_of
from gradconform.drive import operation_log
from gradconform.plugins.devices.simx import inject
from gradconform.reference.autograd import AutogradAdapter, AutogradSession
from gradconform.results import Report
from gradconform.run.run import check_stage_backward
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve

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


def test_weight_gradients_on_an_unawaited_side_stream_are_a_race() -> None:
    report = judged("racing_stream.py")
    failed = [result for result in report if result.status == "failed"]
    assert {result.check for result in failed} == {r.check for r in report if r.check.startswith("split.")}
    assert {(result.level, result.kind) for result in failed} == {("MUST", "race")}
    assert all("another stream is still writing it when W0 returns" in result.message for result in failed)


def test_without_late_streams_no_race_is_reported() -> None:
    target = str(DEVICES / "racing_stream.py")
    report = check_stage_backward(target, device="simx:0", profile="quick", checks=["split.gradients.mlp"])
    assert {result.status for result in report} == {"passed"}


def test_another_stream_than_the_callers_is_kept_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[int] = []
    monkeypatch.setattr(operation_log, "sleep_of", lambda _: slept.append)
    target, simx = resolve(str(DEVICES / "racing_stream.py")), torch.device("simx:0")
    with inject(late_streams="1"):  # without a diagnosis, which runs the target again
        Runner(target, device=simx, dtype=torch.float32, diagnose=False).run(checks_of()["split.gradients.mlp"])
    assert len(slept) == 2  # once in each W
    slept.clear()
    check_stage_backward("reference-split", device="simx:0", checks=["split.gradients.mlp"])
    assert slept == []


class LateUntilTheEnd(AutogradSession):
    """Plain autograd whose W goes on on a side stream, for which ``finish`` waits."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self._side, self._own = torch.Stream(torch.device("simx:0")), list(stage.parameters())

    def backward_weight(self, mb: int) -> None:
        super().backward_weight(mb)
        current = torch.accelerator.current_stream()
        self._side.wait_stream(current)
        with self._side:
            for parameter in self._own:
                parameter.grad = None if parameter.grad is None else parameter.grad * 1

    def finish(self) -> None:
        torch.accelerator.current_stream().wait_stream(self._side)


@pytest.mark.parametrize(("when", "status"), [("finish", "passed"), ("weight", "failed")])
def test_a_gradient_due_at_finish_may_be_late_until_finish(when: str, status: str) -> None:
    class Adapter:
        name = "late until the end"
        capabilities: ClassVar[dict[str, object]] = {**AutogradAdapter.capabilities, "weight_when": when}

        def open(self, stage: nn.Module, spec: StageSpec) -> LateUntilTheEnd:
            return LateUntilTheEnd(stage, spec)

    with inject(late_streams="1"):
        report = check_stage_backward(Adapter(), device="simx:0", checks=["split.gradients.linear-3d"])
    assert [(result.status, result.message) for result in report if result.status != status] == []
    assert len(report.results) == 1
