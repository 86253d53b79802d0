"""``gradconform device`` on a simulated device: its faults are the device's, bounded in size, and told in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def device(folder: Path, *words: str, **variables: str) -> tuple[int, list[str], dict[str, Any]]:
    """Run the command; return its exit code, what it printed, and its report."""
    done = subprocess.run(
        [sys.executable, "-m", "gradconform", "device", *words, "--json", "device.json"],
        cwd=folder, env={**os.environ, **variables}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads((folder / "device.json").read_text(encoding="utf-8"))
    return done.returncode, done.stdout.splitlines(), report


SOME = ("--operation", "mul,sin", "--block", "rms-norm", "--profile", "quick")
FEW = (*SOME, "--checks", "ops.*,blocks.*,full.gradients.mlp")


@pytest.mark.slow
def test_a_kernel_wrong_above_32k_elements_is_found_named_and_bounded(tmp_path: Path) -> None:
    wrong = {"SIMX_WRONG": "aten::mul:index", "SIMX_WRONG_ABOVE": "32768"}
    code, lines, report = device(
        tmp_path, "simx:0", "--dtype", "float32", *FEW, "--exclude-checks", "ops.edges.*", **wrong
    )
    assert code == 1
    told = " ".join(" ".join(lines).split())
    assert "1. aten::mul: 2 checks on simx:0 float32; wrong from 32,832 elements; blocks." in told
    assert lines[-1].startswith("simx:0 is WRONG in 1 operation: 2 checks of ")
    assert lines[-1].endswith("; fix aten::mul first")
    accused = {result["check"] for result in report["results"] if result["status"] == "error"}
    assert accused == {"blocks.full.rms-norm.above-2-15", "blocks.split.rms-norm.above-2-15"}


@pytest.mark.slow
def test_an_operation_that_runs_alone_counts_no_state_of_a_generator_as_a_cpu_fallback(tmp_path: Path) -> None:
    words = ("--operation", "sin", "--oracle", "alone", "--checks", "ops.alone.sin")
    _, _, report = device(tmp_path, "simx:0", *words)
    assert [(one["check"], one["off_device_share"]) for one in report["results"]] == [("ops.alone.sin", 0.0)]


@pytest.mark.slow
def test_the_cpu_and_a_right_device_have_one_line_each(tmp_path: Path) -> None:
    code, lines, report = device(tmp_path, "cpu,simx:0", "--dtype", "all", *FEW, "-n", "2")
    assert code == 5  # chosen checks are not the whole
    assert [line.partition(" ")[0] for line in lines[-2:]] == ["cpu", "simx:0"]
    assert all("is right in all" in line for line in lines[-2:])
    assert {result["dtype"] for result in report["results"]} == {"float64", "float32", "bfloat16", "float16"}


@pytest.mark.slow
def test_reduced_precision_within_the_measured_profile_is_not_a_fault(tmp_path: Path) -> None:
    some = ("--setting", "float32-high,deterministic", "--operation", "sin", "--block", "lora", "--fault", "overwrite")
    words = ("simx:0", "--dtype", "float32", *some, "--checks", "settings.*.mlp")
    code, lines, report = device(tmp_path, *words, SIMX_TF32="1")
    assert code != 1
    assert not [result["check"] for result in report["results"] if result["status"] == "error"]
    assert report["devices"]["probes"][0]["facts"]["numerics"]["float32_bits"]["matmul"] == 10
    assert "WRONG" not in lines[-1]


@pytest.mark.slow
def test_every_known_fault_is_found_on_simx_and_no_setting_is_wrong(tmp_path: Path) -> None:
    words = ("simx:0", "--setting", "all", "--fault", "all", "--dtype", "float16", "-n", "2")
    code, lines, report = device(tmp_path, *words)
    assert code in {0, 5}
    statuses = {result["status"] for result in report["results"] if result["check"].startswith(("set", "fau"))}
    assert statuses <= {"passed", "unsupported", "not_run"}
    told = " ".join(" ".join(lines).split())
    assert " known faults found; two runs with one seed are bit-equal in all " in told
    assert "is right in all" in lines[-1]


@pytest.mark.slow
def test_float8_products_are_tried_if_the_device_has_them(tmp_path: Path) -> None:
    words = ("simx:0", "--dtype", "bfloat16", "--block", "float8-linear", "--operation", "sin", "--checks", "blocks.*")
    assert "is right in all 16" in device(tmp_path, *words)[1][-1]
    code, lines, _ = device(tmp_path, *words, SIMX_WRONG="aten::_scaled_mm:index")
    assert (code, lines[-1]) == (
        1,
        "simx:0 is WRONG in 1 operation: 16 checks of 16 in bfloat16; fix aten::_scaled_mm first",
    )
    code, lines, _ = device(tmp_path, *words, SIMX_NO_OPS="aten::_scaled_mm")
    assert (code, lines[-1]) == (5, "simx:0: no verdict: nothing was judged in bfloat16; 16 unsupported")
