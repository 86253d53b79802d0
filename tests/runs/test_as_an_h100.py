"""What a real H100 was accused of, on simx that computes as it does: TF32 behind torch's switches, fast cells, atomics.

The checks are those of its recorded reports (torch 2.11.0, CUDA 13.0; kit of 2026-11-25), which were all false alarms:
17 in profile standard, with `--flag tf32=off` as well, and 25 of `gradconform device`. Three of the 17 were rows of the
space, which has other rows now; two of them had sparse gradients: tests/core/test_one_operation.py compares those.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AS_AN_H100 = {"SIMX_TF32": "torch", "SIMX_ROUGH_CELLS": "64", "SIMX_ATOMICS": "1", "SIMX_OWN_RANDOM": "1"}

STANDARD = (
    "accumulate.stage.lstm", "full.gradients.gru", "full.gradients.lstm", "full.gradients.rnn", "full.loss.gru",
    "full.loss.rnn", "lifetime.dropped.lstm", "lifetime.full.lstm", "lifetime.split.lstm", "split.gradients.gru",
    "split.gradients.lstm", "split.gradients.rnn", "split.loss.gru", "split.loss.rnn",
)  # fmt: skip
OPERATIONS = (
    "nn.Conv1d", "nn.Conv3d", "nn.ConvTranspose3d", "nn.GRU", "nn.LSTM", "nn.LazyConv1d", "nn.LazyConv3d",
    "nn.LazyConvTranspose3d", "nn.RNN", "nn.Transformer",
)  # fmt: skip


def run(folder: Path, *words: str, **variables: str) -> tuple[str, dict[str, Any]]:
    """Judge the right split on simx; return what was printed, on one line, and the report."""
    path = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", "run", "reference-split", "--device", "simx:0", *words, "--json", path],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert path.is_file(), done.stdout + done.stderr
    return " ".join(done.stdout.split()), json.loads(path.read_text(encoding="utf-8"))


def statuses(report: dict[str, Any]) -> set[str]:
    return {result["status"] for result in report["results"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), "TF32, torch's setting; use --flag tf32=off for 23"),
        pytest.param(("--flag", "tf32=off"), "float32 RNNs have 14 bits here", marks=pytest.mark.nightly),
    ],
    ids=["torch's defaults", "without TF32"],
)
def test_a_device_with_the_numerics_of_an_h100_passes(tmp_path: Path, flags: tuple[str, ...], told: str) -> None:
    printed, report = run(tmp_path, "--checks", ",".join(STANDARD), *flags, **AS_AN_H100)
    found = {result["check"]: result["status"] for result in report["results"]}
    assert found == dict.fromkeys(STANDARD, "passed"), printed
    assert told in printed


@pytest.mark.slow
def test_the_operations_of_a_device_with_the_numerics_of_an_h100_pass(tmp_path: Path) -> None:
    _, report = run(tmp_path, "--operation", ",".join(OPERATIONS), **AS_AN_H100)
    assert [(result["check"], result["message"]) for result in report["results"] if result["status"] != "passed"] == []
    checks = {result["check"] for result in report["results"]}
    assert {f"ops.{area}.{name}" for area in ("full", "split") for name in OPERATIONS} <= checks


@pytest.mark.slow
def test_a_wrong_kernel_on_such_a_device_is_still_found(tmp_path: Path) -> None:
    """The profile explains imprecise convolutions and cells, no wrong ones."""
    wrong = {**AS_AN_H100, "SIMX_WRONG": "aten::convolution_backward:index"}
    _, report = run(tmp_path, "--checks", "full.gradients.conv2d,full.gradients.mlp", **wrong)
    found = {result["check"]: (result["status"], result["kind"]) for result in report["results"]}
    assert found == {"full.gradients.conv2d": ("error", "device"), "full.gradients.mlp": ("passed", None)}
    _, report = run(tmp_path, "--checks", "full.gradients.gru", **{**AS_AN_H100, "SIMX_ROUGH_CELLS": "1000000"})
    assert statuses(report) == {"error"}
