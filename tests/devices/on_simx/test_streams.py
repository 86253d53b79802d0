"""A backward that is issued on a side stream, on simx; test_cuda.py has the same on a GPU."""

from __future__ import annotations

from pathlib import Path

from gradconform.run.run import check_stage_backward

TARGET = str(Path(__file__).parents[1] / "side_stream.py")


def test_a_backward_on_a_side_stream_is_right() -> None:
    checks = ["full.gradients.*", "split.gradients.*"]
    report = check_stage_backward(TARGET, device="simx:1", profile="quick", checks=checks)
    assert {result.status for result in report.results} == {"passed"}
    assert report.results
