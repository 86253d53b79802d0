"""The device of docs/devices.md, which nobody here knows, by name: command, pytest plugin, workers, library."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Process = Callable[..., "subprocess.CompletedProcess[str]"]

HERE = ("--device", "abacus", "--device-plugin", "abacus")


def test_a_run_judges_a_third_party_device_and_reports_its_pre_flight(abacus: Path, process: Process) -> None:
    done = process(
        "gradconform", "run", "reference-split", *HERE, "--dtype", "all",
        "--checks", "full.gradients.mlp,split.gradients.dropout", "--json", "out.json",
    )  # fmt: skip
    report = json.loads((abacus / "out.json").read_text(encoding="utf-8"))
    assert {(r["device"], r["dtype"], r["status"]) for r in report["results"]} == {
        ("abacus", dtype, "passed") for dtype in ("float64", "float32", "bfloat16", "float16")
    }, done.stdout
    (probe,) = report["devices"]["probes"]
    assert probe["device"] == "abacus:0"
    assert [line["held"] for line in probe["preflight"]] == [True] * 12
    assert (report["devices"]["skipped"], report["devices"]["indices"]) == ([], {"abacus": ["abacus:0"]})
    assert "pre-flight" not in done.stdout  # nothing is amiss


def test_doctor_shows_a_third_party_device_and_its_failed_pre_flight(abacus: Path, process: Process) -> None:
    text = (abacus / "abacus.py").read_text(encoding="utf-8")
    mixing = '        raise RuntimeError(f"{op} got tensors on abacus and on the CPU")\n'
    assert mixing in text
    (abacus / "abacus.py").write_text(text.replace(mixing, "        pass\n"), encoding="utf-8")
    done = process("gradconform", "doctor", *HERE)
    assert done.returncode == 4
    assert "abacus:0: can be used" in done.stdout
    assert "float64 float32 bfloat16 float16 complex64 complex128" in done.stdout
    assert "pre-flight  11 of 12 lines hold" in done.stdout
    assert "- Adding or multiplying a tensor on the CPU and one on the device MUST be refused" in done.stdout
    assert "targets" not in done.stdout


def test_without_its_plugin_the_device_is_refused_with_the_call_that_failed(process: Process) -> None:
    done = process("gradconform", "run", "reference-split", "--device", "cpu,abacus")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(
        "gradconform: device 'abacus' cannot be used: torch.device('abacus') raised RuntimeError: Expected one of cpu"
    )
    assert "use --device-plugin MODULE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_third_party_device_gives_the_same_results_with_and_without_workers(abacus: Path, process: Process) -> None:
    test = "def test_device(gradconform_device): assert gradconform_device.type == 'abacus'"
    (abacus / "test_device.py").write_text(test, encoding="utf-8")
    seen: list[Any] = []
    for count in ("0", "2"):
        done = process(
            "pytest", "-q", "-p", "no:cacheprovider", "-n", count, "--gradconform", "reference-split",
            "--gradconform-device", "abacus", "--gradconform-device-plugin", "abacus",
            "--gradconform-checks", "full.gradients.*", "--gradconform-profile", "quick",
            "--gradconform-json", "out.json", XDG_CACHE_HOME=str(abacus / f"caches {count}"),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        report = json.loads((abacus / "out.json").read_text(encoding="utf-8"))
        del report["environment"], report["made"]
        seen.append([{**result, "duration_s": 0} for result in report.pop("results")] + [report])
    assert len(seen[0]) > 3
    assert seen[0] == seen[1]


def test_a_device_registered_only_in_this_process_is_probed_in_it(abacus: Path, process: Process) -> None:
    (abacus / "script.py").write_text(
        """
import abacus
import gradconform
report = gradconform.check_stage_backward("autograd", device="abacus", checks="full.gradients.mlp")
print([result.status for result in report], len(report.devices["probes"][0]["preflight"]))
try:
    gradconform.check_stage_backward("autograd", device="nowhere")
except ValueError as error:
    print(error.exit_code, str(error)[:32])
""",
        encoding="utf-8",
    )
    done = process("script")
    assert done.stdout == "['passed'] 12\n4 device 'nowhere' cannot be used:\n", done.stderr


def test_a_device_registered_after_the_first_backward_is_refused_with_the_reason(
    abacus: Path, process: Process
) -> None:
    (abacus / "late.py").write_text(
        """
import torch
torch.ones(1, requires_grad=True).sum().backward()
import gradconform
gradconform.check_stage_backward("autograd", device="abacus", device_plugins="abacus")
""",
        encoding="utf-8",
    )
    done = process("late")
    assert "works in a new process, but not in this one" in done.stderr
    assert "torch must know a device before the first backward of a process" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("abacus")
def test_a_check_that_would_kill_the_device_process_is_unsupported_in_replay(process: Process) -> None:
    raising, plain = "errors.surface.raising-hook-full", "full.gradients.mlp"
    done = process("gradconform", "replay", raising, "reference-split", *HERE)
    assert f"{raising}: unsupported" in done.stdout, (done.returncode, done.stdout, done.stderr)
    assert "plain autograd on this device ends the process where a backward raises" in " ".join(done.stdout.split())
    assert process("gradconform", "replay", plain, "reference-split", *HERE).returncode == 0
    assert "an error raised in a backward ends the process" in process("gradconform", "doctor", *HERE).stdout


@pytest.mark.slow
@pytest.mark.usefixtures("abacus")
def test_operations_that_raise_on_the_cpu_in_a_layout_do_not_end_the_device_process(process: Process) -> None:
    """The backward of nll_loss refuses layouts; that of sgn makes a tensor without memory."""
    done = process("gradconform", "device", *HERE[1:], "--operation", "nn.functional.nll_loss,sgn")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(the operation raises for a layout)" in " ".join(done.stdout.split())
    assert "crashed" not in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("abacus")
def test_pipeline_runs_a_training_step_on_the_device(process: Process) -> None:
    done = process("gradconform", "pipeline", "torch", *HERE, "--checks", "step.plain", "--ranks-share-device")
    assert "step     1 of 1    1 passed" in done.stdout, done.stdout


@pytest.mark.nightly
@pytest.mark.usefixtures("abacus")
def test_pipeline_gathers_context_and_experts_on_the_device(process: Process) -> None:
    """Torch's runtime counts the tokens of its shape inference, on the CPU too, so experts are unsupported."""
    words = ("--checks", "step.context,step.experts", "--ranks-share-device", "-v")
    done = process("gradconform", "pipeline", "reference-split", *HERE, *words, "--profile", "quick")
    assert "1 passed, 1 unsupported" in done.stdout
    assert "has no attribute" not in done.stdout


@pytest.mark.parametrize("profile", ["quick", pytest.param("standard", marks=pytest.mark.nightly)])
@pytest.mark.usefixtures("abacus")
def test_the_contract_runs_on_the_device_without_crash_failure_or_warning(profile: str, process: Process) -> None:
    done = process("gradconform", "run", "reference-split", *HERE, "--profile", profile)
    assert (done.returncode, done.stderr) == (5, "")  # no check of the area errors can be asked
    assert "none failed" in done.stdout
    assert "crashed" not in done.stdout
    unsupported = done.stdout.partition(" unsupported: ")[2]
    for reason in ("no sparse gradients", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "where a backward raises"):
        unsupported = unsupported.replace(reason, "", 1)
    assert " raised " not in unsupported.replace("plain autograd on this device raised NotImplementedError", "")
