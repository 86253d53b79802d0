"""Operations that run alone on a device: wrong kernels are found and named, and a survey judges each thing once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform.contract.check import Check
from gradconform.run.in_short import device_in_short, operations_in_short
from gradconform.run.options import RunOptions
from gradconform.sources.blocks.checks import select_checks as select_blocks
from gradconform.sources.operations.checks import select as select_operations
from gradconform.sources.settings.checks import select_checks as select_settings

Process = Callable[..., "subprocess.CompletedProcess[str]"]

#: A device on which the backward of sinh is wrong, and lgamma reads its argument as contiguous.
WRONG = """
from functools import partial

import abacus
import torch

library = torch.library.Library("aten", "IMPL")


def too_large(x):
    return torch.ops.aten.cosh.default(x) * 1.125


def ignoring_strides(x):
    strides = torch.empty(x.shape, device="meta").stride()
    return torch.ops.aten.lgamma.default(x.as_strided(x.shape, strides, x.storage_offset()).clone())


for name, wrong in {"cosh": too_large, "lgamma": ignoring_strides}.items():
    library.impl(name, partial(abacus.run, wrong), "PrivateUse1", allow_override=True)
"""


@pytest.mark.slow
def test_a_wrong_kernel_of_an_operation_that_runs_alone_is_named(abacus: Path, process: Process) -> None:
    (abacus / "wrong.py").write_text(WRONG, encoding="utf-8")
    words = ("--device", "abacus", "--device-plugin", "wrong", "--operation", "sinh,lgamma,tan", "--oracle", "alone")
    checks = ("--checks", "ops.alone.*", "--profile", "quick", "--json", "alone.json")
    done = process("gradconform", "run", "reference-split", *words, *checks)
    results = {one["check"]: one for one in json.loads((abacus / "alone.json").read_text(encoding="utf-8"))["results"]}
    assert {name: (one["status"], one["kind"]) for name, one in results.items()} == {
        "ops.alone.lgamma": ("error", "device"),
        "ops.alone.sinh": ("error", "device"),
        "ops.alone.tan": ("passed", None),
    }, done.stdout + done.stderr
    assert _kernel(results["ops.alone.sinh"]) == ("operation_wrong", "aten::cosh")
    assert _kernel(results["ops.alone.lgamma"]) == ("layout_ignored", "aten::lgamma")
    assert results["ops.alone.tan"]["oracle"]["compared"] == 2  # the output and the gradient
    assert results["ops.alone.tan"]["off_device_share"] == 0.0


@pytest.mark.slow
def test_no_script_is_offered_for_a_fault_of_the_device(abacus: Path, process: Process) -> None:
    """On the wrong device plain autograd is as wrong as the implementation, so a script called both right."""
    (abacus / "wrong.py").write_text(WRONG, encoding="utf-8")
    words = ("gradconform", "replay", "ops.full.sinh", "reference-split", "--device", "abacus")
    done = process(*words, "--device-plugin", "wrong")
    assert "aten::cosh" in done.stdout
    assert "--script" not in done.stdout
    refused = process(*words, "--device-plugin", "wrong", "--script", "sinh.py")
    assert refused.returncode == 2
    assert "--script: abacus is wrong in ops.full.sinh, not the implementation" in " ".join(refused.stderr.split())
    assert not (abacus / "sinh.py").exists()


def _kernel(result: dict[str, Any]) -> tuple[str, str]:
    cause = result["findings"][0]["cause"]
    return cause["kind"], cause["names"][0]


def _on(device: str, checks: list[Check]) -> dict[str, int]:
    """Return the number of samples of each check that runs on a device in float32."""
    return {check.id: len(check.trials) for check in checks if check.runs_on(device, "float32")}


@pytest.fixture
def selected(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Check]]:
    """Select checks as a run of all operations, which are sin and digamma."""
    names = ("digamma", "sin")
    real = select_operations.__globals__["select_checks"]

    def select(options: RunOptions) -> list[Check]:
        def of_two(_: Any, profile: Any, *rest: Any, **named: Any) -> Any:
            return real(names, profile, *rest, **named)

        monkeypatch.setitem(select_operations.__globals__, "select_checks", of_two)
        return list(select_operations(options, {}).checks)

    return select


def test_a_survey_of_a_device_runs_each_operation_alone_and_the_cpu_by_its_own_oracles(
    selected: Callable[..., list[Check]],
) -> None:
    options = RunOptions.of("reference-split", operation="all", oracle="all", profile="quick")
    checks = selected(options)
    assert _on("npu:0", checks) == {"ops.alone.digamma": 2, "ops.alone.sin": 1, "ops.edges.sin": 0}
    ways = ("full", "split", "layout", "additive")
    assert set(_on("cpu", checks)) == {f"ops.{way}.{name}" for way in ways for name in ("digamma", "sin")}


@pytest.mark.parametrize(
    "given",
    [
        {"target": "torch", "operation": "all", "oracle": "all", "profile": "quick"},
        {"operation": "all", "oracle": "all", "profile": "full"},
        {"operation": "sin", "oracle": "all", "profile": "quick"},
        {"operation": "all", "oracle": "layout", "profile": "quick"},
    ],
)
def test_other_runs_judge_both_backwards_on_the_device_and_no_operation_alone(
    given: dict[str, str], selected: Callable[..., list[Check]]
) -> None:
    options = RunOptions.of(given.pop("target", "reference-split"), **given)
    assert not device_in_short(options)
    found = _on("npu:0", selected(options))
    assert {"ops.full.sin", "ops.split.sin", "ops.layout.sin"} <= set(found)
    assert not {check for check in found if check.startswith("ops.alone.")}


def test_of_a_whole_device_in_standard_each_sample_is_judged_alone_and_two_of_them_in_a_stage(
    selected: Callable[..., list[Check]],
) -> None:
    both, whole = (
        selected(RunOptions.of(target, operation="all", oracle="all", profile="standard"))
        for target in ("torch", "reference-split")
    )
    samples = _on("npu:0", both)["ops.full.digamma"]
    found = _on("npu:0", whole)
    assert samples == _on("npu:0", both)["ops.split.digamma"] == found["ops.alone.digamma"] > 2
    assert (found["ops.full.digamma"], found["ops.split.digamma"]) == (1, 1)
    assert (found["ops.layout.digamma"], _on("npu:0", both)["ops.layout.digamma"]) == (2, samples)
    assert _on("npu:0", both).keys() ^ found.keys() == {
        f"ops.{oracle}.{name}" for oracle in ("additive", "alone") for name in ("digamma", "sin")
    }
    assert _on("cpu", whole).keys() == _on("cpu", both).keys()


def test_operations_are_in_short_if_all_are_named_in_profile_quick() -> None:
    assert operations_in_short("quick", ("all",))
    assert not operations_in_short("standard", ("all",))
    assert not operations_in_short("quick", ("sin",))


def test_in_short_blocks_and_settings_are_tried_in_b_on_fewer_stages() -> None:
    few, many = (select_blocks(["rms-norm"], "small", in_short=short) for short in (True, False))
    assert [check.id for check in few.checks] == ["blocks.full.rms-norm.odd", "blocks.full.rms-norm.above-2-15"]
    assert (few.stages, many.stages, len(many.checks)) == (2, 8, 16)
    whole = select_blocks(["rms-norm"], "small", whole=True)
    assert [check.id for check in whole.checks if ".full." in check.id] == [
        check.id for check in many.checks if ".full." in check.id
    ]
    assert [check.id for check in whole.checks if ".split." in check.id] == [
        "blocks.split.rms-norm.odd", "blocks.split.rms-norm.above-2-15",
    ]  # fmt: skip
    large = select_blocks(["rms-norm"], "large", in_short=True)
    assert [check.id.rpartition(".")[2] for check in large.checks][2:] == [
        "hidden-512", "below-2-20", "at-2-20", "above-2-20",
    ]  # fmt: skip
    few_settings, all_settings = (select_settings(["deterministic"], in_short=short) for short in (True, False))
    assert {check.id.split(".")[1] for check in few_settings.checks} == {"full"}
    assert (few_settings.stages, len(few_settings.checks)) == (6, 6)
    assert (all_settings.stages, len(all_settings.checks)) == (18, 36)
