"""What only a GPU can show: streams, two indices, bfloat16 and TF32. Skipped, and counted, where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def test_weight_gradients_on_an_unawaited_side_stream_are_a_race() -> None:
    report = judged(str(Path(__file__).with_name("racing_stream.py")))
    failed = [result for result in report if result.status == "failed"]
    assert {result.check for result in failed} == {one.check for one in report if one.check.startswith("split.")}
    assert {(result.level, result.kind) for result in failed} == {("MUST", "race")}


@pytest.mark.nightly
def test_every_planted_fault_is_found_on_the_gpu_with_its_kernel_first(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.devices.find_planted", "--device=cuda"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {one["fault"]: one["reported"][:1] for one in found} == {one["fault"]: [one["expected"]] for one in found}


def test_tf32_is_reported_and_explained_by_the_numeric_profile() -> None:
    report = judged("reference-split", flags={"tf32": "on"}, checks=["full.gradients.*"])
    assert report.environment["flags"] == {"tf32": "on"}
    assert {result.status for result in report.results} == {"passed"}
