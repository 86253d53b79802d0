"""What only a GPU can show: streams, two indices, bfloat16 and TF32. Skipped, and counted, where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform import check_stage_backward
from gradconform.results import Report

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu: torch.cuda.is_available() is False")

CHECKS = ["full.gradients.*", "split.gradients.*", "state.rng.*"]


def judged(target: object, **options: Any) -> Report:
    return check_stage_backward(target, **{"device": "cuda", "profile": "quick", "checks": CHECKS, **options})


def test_the_quick_profile_passes_on_every_index_in_float32_and_bfloat16() -> None:
    report = judged("reference-split", device="cuda:*", dtype=["float32", "bfloat16"], checks=None)
    assert not report.failures
    assert {result.device for result in report.results} == {f"cuda:{i}" for i in range(torch.cuda.device_count())}


def test_a_backward_on_a_side_stream_is_right() -> None:
    report = judged(str(Path(__file__).with_name("side_stream.py")))
    assert not report.failures
    assert report.summary["passed"] > 0


def test_tf32_is_reported_and_explained_by_the_numeric_profile() -> None:
    report = judged("reference-split", flags={"tf32": "on"}, checks=["full.gradients.*"])
    assert report.environment["flags"] == {"tf32": "on"}
    assert {result.status for result in report.results} == {"passed"}
