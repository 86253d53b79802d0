"""A device whose tensors have no storage and no address, a wrapper subclass: see pebble.py."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradconform

pytest.importorskip("torch._C._acc", reason="a device in Python alone needs a newer torch")

Process = Callable[..., "subprocess.CompletedProcess[str]"]

HERE = ("--device", "pebble", "--device-plugin", "pebble")
CHECKS = "full.gradients.mlp,split.gradients.mlp,state.returned*,accumulate.o*"


@pytest.fixture(autouse=True)
def pebble(tmp_path: Path) -> None:
    """A folder with the module ``pebble``."""
    shutil.copy(Path(__file__).with_name("pebble.py"), tmp_path)


def judged(folder: Path, process: Process, *arguments: str, **variables: str) -> dict[str, Any]:
    """Return the report of a run on the device."""
    process("gradconform", "run", "reference-split", *HERE, *arguments, "--json", "out.json", **variables)
    gradconform.read_report(folder / "out.json")  # it meets the schema
    report: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    return report


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, id="raises"),
        pytest.param({"PEBBLE_CRASHES": "1"}, id="ends the process", marks=pytest.mark.slow),
    ],
)
def test_facts_that_device_tensors_hide_are_not_reported_as_failures(
    variables: dict[str, str], tmp_path: Path, process: Process
) -> None:
    report = judged(tmp_path, process, "--checks", CHECKS, **variables)
    statuses = {result["check"]: result["status"] for result in report["results"]}
    assert set(statuses.values()) == {"passed"}
    assert {"full.gradients.mlp", "split.gradients.mlp"} < statuses.keys()
    (probe,) = report["devices"]["probes"]
    assert {name: probe["facts"][name] for name in ("shows_version", "shows_offset")} == {
        "shows_version": True,
        "shows_offset": True,
    }
    assert not probe["facts"]["shows_address"]


def test_doctor_names_the_defects_that_cannot_be_found_on_the_device(process: Process) -> None:
    done = process("gradconform", "doctor", *HERE)
    assert "its tensors show no address, so gradients that share memory are not found" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_the_quick_profile_passes_except_for_features_the_device_lacks(tmp_path: Path, process: Process) -> None:
    report = judged(tmp_path, process, "--profile", "quick")
    counts = Counter(result["status"] for result in report["results"])
    assert counts["passed"] > 0.9 * len(report["results"]), counts
    # The device has no sparse gradients. Torch raises for them on its own thread, which ends the process or not.
    ways = {
        "unsupported": (
            "plain autograd on this device ",
            "on this device `parameter.data = tensor` keeps the old values",
        ),
        "error": "the process was killed by SIGABRT; the same happens with plain autograd",
    }
    others = [result for result in report["results"] if result["status"] != "passed"]
    assert others
    for result in others:
        assert result["message"].startswith(ways[result["status"]]), result


@pytest.mark.slow
def test_trials_with_shared_memory_pass_without_addresses(tmp_path: Path, process: Process) -> None:
    # Two parameters on one memory after a change in place; output gradients that W reads after the caller wrote over
    # them; slopes along an argument whose elements are at one address.
    checks = ("space.full.ragged-mb-1", "space.split.state-1", "space.full.same-arguments-1")
    report = judged(tmp_path, process, "--profile", "standard", "--checks", ",".join(checks))
    assert {result["check"]: result["status"] for result in report["results"]} == dict.fromkeys(checks, "passed")


@pytest.mark.slow
def test_checks_that_replace_data_are_unsupported_if_the_old_values_stay(tmp_path: Path, process: Process) -> None:
    report = judged(tmp_path, process, "--profile", "standard", "--checks", "steps.params.replace-*")
    why = "on this device `parameter.data = tensor` keeps the old values, so no check replaces the data of parameters"
    told = {(result["status"], result["kind"], result["message"]) for result in report["results"]}
    assert told == {("unsupported", "environment", why)}
    (probe,) = report["devices"]["probes"]
    assert probe["facts"]["replaces_data"] is False


@pytest.mark.slow
def test_a_wrong_kernel_of_the_device_is_named(tmp_path: Path, process: Process) -> None:
    text = (tmp_path / "pebble.py").read_text(encoding="utf-8")
    found = "    found = func(*called[0], **called[1])\n"
    assert found in text
    wrong = f"{found}    if func is torch.ops.aten.gelu_backward.default:\n        found = found * 1.25\n"
    (tmp_path / "pebble.py").write_text(text.replace(found, wrong), encoding="utf-8")
    report = judged(tmp_path, process, "--checks", "full.gradients.*", "--profile", "quick")
    wrong_there = [result for result in report["results"] if result["status"] == "error"]
    assert wrong_there
    assert {result["kind"] for result in wrong_there} == {"device"}
    assert all("aten::gelu_backward" in result["message"] for result in wrong_there)
    assert not [result for result in report["results"] if result["status"] == "failed"]


@pytest.mark.slow
def test_an_error_in_the_kits_own_code_is_a_kit_error(tmp_path: Path, process: Process) -> None:
    text = (tmp_path / "pebble.py").read_text(encoding="utf-8")
    broken = "from gradconform.reference import gradients\n\ngradients.shared_place_of = int  # raises for several"
    (tmp_path / "pebble.py").write_text(f"{text}\n{broken}\n", encoding="utf-8")
    report = judged(tmp_path, process, "--operation", "erf", "--profile", "quick")
    assert {(r["status"], r["kind"]) for r in report["results"]} == {("error", "kit")}
    assert "the kit's right split raised " in report["results"][0]["message"]
    listed = process("gradconform", "report", "out.json", "--skip-list", "skips.py")
    assert "erf" not in (tmp_path / "skips.py").read_text(encoding="utf-8"), listed.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("PEBBLE_CRASHES_IF_SEEN", "its operations cannot be logged, so those that run on the CPU are not found"),
        ("PEBBLE_CRASHES_IF_COUNTED", "its counter of memory ends the process, so memory is not counted"),
    ],
)
def test_a_watch_that_kills_the_process_is_switched_off_and_reported(
    variable: str, sentence: str, tmp_path: Path, process: Process
) -> None:
    report = judged(tmp_path, process, "--checks", "full.gradients.mlp,split.gradients.mlp", **{variable: "1"})
    assert [result["status"] for result in report["results"]] == ["passed"] * 2
    shown = " ".join(process("gradconform", "report", "out.json").stdout.split())
    assert "unwatched pebble:0: its tensors show no address, so gradients that share memory are not found" in shown
    assert f"; {sentence}" in shown


@pytest.mark.slow
def test_a_wrong_operation_that_cannot_be_watched_is_still_a_device_error(tmp_path: Path, process: Process) -> None:
    wrong = {"PEBBLE_CRASHES_IF_SEEN": "1", "PEBBLE_WRONG": "aten::threshold_backward"}
    report = judged(tmp_path, process, "--checks", "full.gradients.mlp", **wrong)
    (result,) = report["results"]
    assert (result["status"], result["kind"]) == ("error", "device")
    assert result["message"].startswith("plain autograd is wrong on pebble")
