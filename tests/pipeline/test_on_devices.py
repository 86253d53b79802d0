"""Pipelines on devices without a communication backend: ranks communicate by gloo over copies on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DEVICES = Path(__file__).parents[1] / "devices"

DOUBLED = """
from gradconform.reference import split
from gradconform.reference.split import stage_backward, stage_backward_input

def stage_backward_weight(weights, param_groups, retain_graph=False):
    "Double each weight gradient."
    weights = list(weights)
    split.stage_backward_weight(iter(weights), param_groups, retain_graph)
    for weight in weights:
        if weight.grad is not None:
            weight.grad.mul_(2)
"""


def pipeline(folder: Path, *words: str, **variables: str) -> tuple[str, dict[str, Any]]:
    """Run the command; return what it printed, and its report."""
    path = folder / "report.json"
    command = [sys.executable, "-m", "gradconform", "pipeline", *words, "--json", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(DEVICES), **variables}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, env=environment)
    assert path.is_file(), done.stdout + done.stderr
    return done.stdout, json.loads(path.read_text(encoding="utf-8"))


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {result["check"]: result["status"] for result in report["results"]}


@pytest.mark.slow
def test_a_right_split_passes_on_simx_and_a_wrong_one_fails(tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(DOUBLED, encoding="utf-8")
    words = ("--schedule", "ZBVZeroBubble", "--checks", "*.two-steps", "--device", "simx")
    printed, right = pipeline(tmp_path, "reference-split", *words)
    assert "gloo over copies on the CPU" in printed
    _, wrong = pipeline(tmp_path, "doubled.py", *words)
    check = "pipeline.zbv-zero-bubble.two-steps"
    assert (statuses(right), statuses(wrong)) == ({check: "passed"}, {check: "failed"})
    assert {result["device"] for result in (*right["results"], *wrong["results"])} == {"simx"}


@pytest.mark.slow
def test_training_steps_run_on_simx_with_replicas_and_shards(tmp_path: Path) -> None:
    checks = ("step.plain", "step.ddp-tokens")
    _, report = pipeline(tmp_path, "reference-split", "--device", "simx", "--checks", ",".join(checks))
    assert statuses(report) == dict.fromkeys(checks, "passed")


@pytest.mark.slow
def test_ranks_share_the_only_index_of_a_wrapper_subclass_device(tmp_path: Path) -> None:
    words = ("--schedule", "1F1B", "--checks", "*.two-steps,*.tied", "--device", "pebble", "--device-plugin", "pebble")
    printed, report = pipeline(tmp_path, "reference-split", *words, "--ranks-share-device")
    assert set(statuses(report).values()) == {"passed"}, printed
    assert len(report["results"]) == 2
    assert report["options"]["device_plugins"] == ["pebble"]
