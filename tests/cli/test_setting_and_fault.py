"""``--setting`` and ``--fault``: settings of torch, and faults that have to be found, in place of the contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gradconform import check_stage_backward
from gradconform.contract import checks_of
from gradconform.devices import tensor_facts
from gradconform.devices.device import device_of
from gradconform.devices.numeric_profile import NumericProfile
from gradconform.reference import faults
from gradconform.reference.autograd import AutogradAdapter
from gradconform.reference.faults.alterations import each_input_grad, target
from gradconform.run.judging import judged
from gradconform.run.runner import Runner
from gradconform.sources.faults.checks import select_checks
from gradconform.sources.faults.known_faults import FaultCheck, KnownFaults
from gradconform.sources.settings.checks import SETTINGS
from gradconform.target.resolve import resolve

Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_setting_is_judged_in_the_dtypes_that_it_changes(command: Command) -> None:
    words = ("--setting", "autocast-bfloat16,deterministic", "--dtype", "float32,bfloat16")
    done = command("run", "reference-split", *words, "--json", "report.json")
    assert done.code == 0
    results = json.loads(Path("report.json").read_text(encoding="utf-8"))["results"]
    tried = {(result["check"].split(".")[2], result["dtype"]) for result in results}
    assert tried == {
        ("autocast-bfloat16", "float32"), ("deterministic", "float32"), ("deterministic", "bfloat16"),
    }  # fmt: skip
    ran = {result["check"].split(".")[3] for result in results if result["status"] == "passed"}
    assert {"mlp", "conv2d", "lstm", "decoder-layer", "experts"} <= ran


def test_a_setting_is_active_while_the_implementation_runs() -> None:
    seen: dict[str, set[Any]] = {name: set() for name in SETTINGS}

    class Watching(AutogradAdapter):
        def open(self, stage: Any, spec: Any) -> Any:
            session = super().open(stage, spec)
            forward = session.forward

            def watched(*given: Any) -> Any:
                lower = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
                deterministic = torch.are_deterministic_algorithms_enabled()
                seen[now].add((torch.get_float32_matmul_precision(), deterministic, lower))
                return forward(*given)

            session.forward = watched
            return session

    before = torch.get_float32_matmul_precision()
    for now in SETTINGS:
        report = check_stage_backward(Watching(), setting=now, checks="settings.full.*.mlp")
        assert [result.status for result in report] == ["passed"]
    of_its_preflight = ("highest", False, None)
    assert {name: found - {of_its_preflight} for name, found in seen.items()} == {
        "autocast-bfloat16": {("highest", False, torch.bfloat16)},
        "autocast-float16": {("highest", False, torch.float16)},
        "deterministic": {("highest", True, None)},
        "float32-high": {("high", False, None)},
        "float32-medium": {("medium", False, None)},
    }
    assert torch.get_float32_matmul_precision() == before


def _doubled(_: Any, grad: Tensor) -> Tensor:
    return grad * 2.0 if torch.get_float32_matmul_precision() == "high" else grad


@pytest.mark.parametrize(
    ("made", "setting"),
    [
        (faults.FAULTS["gradients-in-the-dtype-of-autocast"].make, "autocast-bfloat16"),
        (faults.FAULTS["sums-in-memory-never-written-to"].make, "deterministic"),
        (lambda: target(each_input_grad(_doubled)), "float32-high"),
    ],
)
def test_a_defect_under_one_setting_fails_only_under_that_setting(made: Callable[[], Any], setting: str) -> None:
    others = ["float32-medium", setting]
    report = check_stage_backward(made(), setting=others, checks="settings.*.mlp")
    assert {result.check.split(".")[2] for result in report if result.status == "failed"} == {setting}
    assert {result.check.split(".")[2] for result in report} == set(others)


def test_every_known_fault_is_found_on_the_cpu(command: Command) -> None:
    done = command("run", "reference-split", "--fault", "all", "--dtype", "bfloat16", "--json", "report.json")
    assert done.code == 0
    results = json.loads(Path("report.json").read_text(encoding="utf-8"))["results"]
    apart = {name for name, fault in faults.FAULTS.items() if fault.dtypes and "bfloat16" not in fault.dtypes}
    assert {result["check"].removeprefix("faults.found.") for result in results} == set(faults.FAULTS) - apart
    assert {result["status"] for result in results} <= {"passed", "unsupported"}
    assert f"known faults: {len(faults.FAULTS)}, each to be found by a check that names it" in done.out


def test_a_known_fault_that_no_check_finds_is_a_kit_error(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    none = replace(faults.FAULTS["overwrite"], make=lambda: resolve("reference-split"))
    monkeypatch.setattr("gradconform.sources.faults.checks.FAULTS", {"overwrite": none})
    done = command("run", "reference-split", "--fault", "overwrite", "--no-isolation")
    assert done.code == 3
    told = " ".join(done.out.split())
    assert (
        "not found: Each micro-batch's parameter gradients replace the accumulated ones. It passed accumulate." in told
    )
    assert "what passes here may be as wrong" in told


@pytest.mark.parametrize(
    ("shows_by", "withheld", "profile", "told"),
    [
        ("memory", ("address",), NumericProfile(), "cpu shows no address of a tensor, so that this is"),
        (
            "denormals",
            (),
            NumericProfile(denormals_kept=False),
            "cpu flushes denormals to 0, so that this is",
        ),
        ("memory", (), NumericProfile(denormals_kept=False), None),
        (None, ("address",), NumericProfile(denormals_kept=False), None),
    ],
)
def test_a_fault_is_not_tried_if_the_device_lacks_the_feature_that_shows_it(
    monkeypatch: pytest.MonkeyPatch, shows_by: Any, withheld: tuple[str, ...], profile: NumericProfile, told: str | None
) -> None:
    none = replace(faults.FAULTS["overwrite"], make=lambda: resolve("reference-split"), shows_by=shows_by)
    (check,) = select_checks(["overwrite"], {**checks_of()}).checks
    monkeypatch.setitem(tensor_facts._WITHHELD, "cpu", frozenset(withheld))
    monkeypatch.setattr(device_of(torch.device("cpu")), "numerics", profile)
    result = judged(KnownFaults(torch.device("cpu"), torch.float32, 20), replace(check, fault=none))
    assert (result.status, result.kind) == (("error", "kit") if told is None else ("unsupported", "environment"))
    assert told is None or told in result.message


def test_a_fault_is_unsupported_if_the_device_cannot_run_its_finder(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = select_checks(["no-elements-no-gradient"], {**checks_of()}).checks
    assert isinstance(check, FaultCheck)
    lost = check.finders[-1].id

    class Lacking(Runner):
        def run(self, finder: Any) -> Any:
            if finder.id != lost:
                return finder.result("cpu", "float32", status="passed")
            return finder.result("cpu", "float32", status="unsupported", kind="environment", message="no sparse tensor")

    monkeypatch.setattr("gradconform.sources.faults.known_faults.Runner", Lacking)
    result = judged(KnownFaults(torch.device("cpu"), torch.float32, 20), check)
    assert (result.status, result.kind) == ("unsupported", "environment")
    passed = ", ".join(finder.id for finder in check.finders[:-1])
    assert result.message == f"{lost}, which may find it, is unsupported here: no sparse tensor; it passed {passed}"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--setting", "autocast"), "unknown setting 'autocast'; nearest: autocast-bfloat16, autocast-float16"),
        (("--fault", "overwrit"), "unknown fault 'overwrit'; nearest: overwrite, "),
        (("--setting", "float32-high", "--dtype", "float64"), "no selected check runs in float64"),
    ],
)
def test_an_unknown_setting_or_fault_is_refused_with_the_nearest_name(
    command: Command, words: tuple[str, ...], told: str
) -> None:
    done = command("run", "torch", *words)
    assert done.code == 2
    assert told in done.err


def test_a_setting_or_fault_is_replayed_by_its_id(command: Command) -> None:
    again = command("replay", "settings.split.autocast-bfloat16.mlp", "reference-split")
    assert again.code == 0
    assert "settings.split.autocast-bfloat16.mlp: passed" in again.out
    again = command("replay", "faults.found.overwrite", "reference-split")
    assert again.code == 0
    refused = command("replay", "faults.found.overwrite", "reference-split", "--script", "fault.py")
    assert (refused.code, "judges a fault of the kit" in refused.err) == (2, True)
