"""The device xla on torch_xla's CPU client, where torch_xla is installed: constraints-xla.txt says which."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Process = Callable[..., "subprocess.CompletedProcess[str]"]

INSTALLED = importlib.util.find_spec("torch_xla") is not None
SCRIPTS = Path(__file__).parent / "torch_xla"
needs_it = pytest.mark.skipif(not INSTALLED, reason="torch_xla is not installed: pip install -r constraints-xla.txt")


@pytest.mark.skipif(INSTALLED, reason="torch_xla is installed")
def test_without_torch_xla_the_device_is_refused_with_the_command_that_installs_it(process: Process) -> None:
    done = process("gradconform", "run", "reference-split", "--device", "xla")
    assert (done.returncode, done.stdout) == (4, "")
    assert "torch_xla is not installed; install it with: pip install -r constraints-xla.txt" in done.stderr


@needs_it
@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_the_right_split_passes_the_quick_profile(dtype: str, tmp_path: Path, process: Process) -> None:
    done = process(
        "gradconform", "run", "reference-split", "--device", "xla", "--dtype", dtype, "--profile", "quick",
        "--json", "out.json", PJRT_DEVICE="CPU",
    )  # fmt: skip
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    named = "aten::gelu is wrong" if dtype == "float64" else None  # torch_xla/gelu_constants_in_float32.py
    wrong = {
        result["check"]: result["status"]
        for result in report["results"]
        if result["status"] != "passed" and not (named and result["message"].startswith(named))
    }
    assert set(wrong.values()) <= {"unsupported"}, done.stdout
    assert len(wrong) <= 5
    assert "lifetime.split.mlp" not in wrong  # it was, for data of the CPU that the kit gave a tensor of the device
    assert "Overriding a previously registered kernel" not in done.stderr


@needs_it
@pytest.mark.nightly
def test_the_device_command_ends_with_a_verdict(tmp_path: Path, process: Process) -> None:
    done = process(
        "gradconform", "device", "xla", "--dtype", "float32", "--time-budget", "10m", "--json", "out.json",
        PJRT_DEVICE="CPU",
    )  # fmt: skip
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert done.returncode in {0, 1, 5}, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not [result for result in report["results"] if result["kind"] == "kit"]


@needs_it
@pytest.mark.nightly
def test_the_script_of_a_failing_check_runs_as_printed(tmp_path: Path, process: Process) -> None:
    check, *words = "split.gradients.output-view", "torch", "--device", "xla", "--script", "fails.py"
    done = process("gradconform", "replay", check, *words, PJRT_DEVICE="CPU")
    assert f"it runs {check} with torch, torch_xla and the implementation alone" in " ".join(done.stdout.split())
    command = [sys.executable, "fails.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PJRT_DEVICE": "CPU"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG: 1 things differ from plain autograd" in done.stdout


@needs_it
@pytest.mark.nightly
@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda script: script.stem)
def test_torch_xla_alone_shows_the_defects_that_the_kit_reports(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "got: " in done.stdout
