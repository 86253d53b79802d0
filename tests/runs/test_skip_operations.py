"""``--skip-operations``: what a list names is left out of a run, counted and told; what is no list is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform import check_stage_backward
from gradconform.report.device_verdict import device_verdict
from gradconform.report.sections import sections
from gradconform.report.sentences import verdict
from gradconform.results import Report
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.run.skip_lists import SkipListError, read_skip_list

#: A list as vendors of devices write them, in each form that torch has for it.
OF_TORCH = """
import unittest
import torch
from torch.testing._internal.common_device_type import skip, tol, toleranceOverride, xfail
from torch.testing._internal.opinfo.core import DecorateInfo

SPECS = [skip("add", device_type="npu"), xfail("div", "floor_rounding"), skip("mul", dtypes=(torch.float64,))]
op_overrides = {
    "exp": (DecorateInfo(unittest.expectedFailure, "TestBwdGradients", "test_fn_grad", device_type="npu"),),
    "log": [DecorateInfo(unittest.skip("of another test"), "TestCommon", "test_out")],
    "sin": [DecorateInfo(toleranceOverride({torch.float32: tol(atol=1.0, rtol=1.0)}))],
    "cos": [DecorateInfo(unittest.skip("late"), active_if=lambda given: given["mode"] == "eager")],
    "torch.ops.aten._safe_softmax.default": [DecorateInfo(unittest.skip("hung"), dtypes=(torch.float32,))],
}
again = op_overrides
plain = {"tan": [torch.float32], "tanh": ["float64"], "nn.Tanh": [], "sinh": None}
_not_a_list, config, limit = {"cosh": []}, {"path": "somewhere"}, 3
"""


def written(folder: Path, text: str, name: str = "skips.py") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize(
    ("name", "npu", "cpu", "cpu64"),
    [
        ("add", "listed", None, None),
        ("div.floor_rounding", "listed", "listed", "listed"),
        ("mul", None, None, "listed"),
        ("exp", "expected to fail", None, None),
        ("log", None, None, None),
        ("sin", None, None, None),
        ("cos", None, None, None),
        ("ops.aten._safe_softmax.default", "hung", "hung", None),
        ("tan", "listed", "listed", None),
        ("tanh", None, None, "listed"),
        ("nn.Tanh", "listed", "listed", "listed"),
        ("sinh", "listed", "listed", "listed"),
        ("cosh", None, None, None),
    ],
)
def test_each_form_of_torchs_skip_list_is_read(
    name: str, npu: str | None, cpu: str | None, cpu64: str | None, tmp_path: Path
) -> None:
    found = read_skip_list(written(tmp_path, OF_TORCH))
    asked = (("npu", torch.float32), ("cpu", torch.float32), ("cpu", torch.float64))
    reasons = [found.reason(name, *place) for place in asked]
    assert reasons == [None if why is None else f"withheld by {found.file}: {why}" for why in (npu, cpu, cpu64)]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.py", "import nosuch", "reading it raised ModuleNotFoundError: No module named 'nosuch'; expected"),
        ("a.py", "raise SystemExit(3)", "reading it raised SystemExit: 3"),
        ("a.py", "limit = 3", "the file contains no list of operations; expected a list of torch"),
        ("a.py", "mine = {'add': [3]}", "mine['add']: expected a DecorateInfo or a dtype"),
        ("a.json", '{"add": ["float31"]}', "expected a dtype of torch, such as 'float32'; got 'float31'"),
        ("a.json", '["add"]', "the file contains no list of operations"),
        ("a.json", "{", "reading it raised JSONDecodeError"),
    ],
)  # fmt: skip
def test_an_invalid_skip_list_is_refused_with_its_name_and_the_expected_form(
    name: str, text: str, told: str, tmp_path: Path
) -> None:
    file = written(tmp_path, text, name)
    with pytest.raises(SkipListError) as refused:
        read_skip_list(file)
    assert str(refused.value).startswith(f"--skip-operations {file}: ")
    assert told in str(refused.value)


def test_a_missing_list_and_a_run_without_operations_are_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(SkipListError, match=r"nowhere\.py: the file does not exist; expected a list of"):
        Run(RunOptions.of("torch", operation="sin", skip_operations="nowhere.py"))
    with pytest.raises(SkipListError, match="no operation is selected; select some with --operation"):
        Run(RunOptions.of("torch", profile="quick", skip_operations=written(tmp_path, "x = {}")))


def test_a_skipped_operation_is_a_result_and_is_reported_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, '{"sin": ["float32"], "nosuch": []}', "skips.json")
    asked = {"operation": ("sin", "cos", "exp", "log"), "profile": "quick", "dtype": ("float32", "float64")}
    report = check_stage_backward("reference-split", **asked, skip_operations=Path("skips.json"))
    left = {(result.check, result.dtype) for result in report if result.kind == "withheld"}
    assert left == {("ops.full.sin", "float32"), ("ops.split.sin", "float32")}
    assert report.verdict == "passed"
    assert report.extra[-1] == (
        "withheld by skips.json: 1 of 4 operations; names that torch does not list as differentiable: 1, nosuch"
    )
    assert verdict(report).endswith("14 of 16 checks passed; no verdict on contract 1.3, which was not run; "
                                    "2 withheld by skips.json")  # fmt: skip
    (line,) = [line.text for line in device_verdict(report, {"cpu": 16}).lines if line.text.startswith("cpu is")]
    assert line == "cpu is right in all 14 checks that it supports in float32, float64; 2 withheld"
    told = {section.heading: [item.text for item in section.items] for section in sections(report)}
    assert told["withheld: 2 checks on a skip list"] == ["withheld by skips.json: listed"]
    assert told["operations: 3 of 4 right"][0] == "withheld: sin"
    assert Report.to_json(report)


def test_a_run_that_skips_a_large_part_is_incomplete(tmp_path: Path) -> None:
    file = written(tmp_path, '{"sin": []}', "skips.json")
    report = check_stage_backward("reference-split", operation=("sin", "cos"), profile="quick", skip_operations=file)
    assert report.verdict == "incomplete"
    assert "2 of 4 checks are unsupported on cpu float32" in verdict(report)


@pytest.mark.slow
def test_wrong_operations_of_a_device_are_written_to_a_list_read_back_and_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMX_WRONG", "aten::tanh:index")
    monkeypatch.setenv("SIMX_NO_OPS", "aten::erf")
    right = "exp,log,sqrt,neg,abs,sigmoid,cumsum"
    words = ("run", "reference-split", "--device", "simx:0", "--operation", f"tanh,erf,{right}", "--profile", "quick")

    def run(*more: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "gradconform", *more], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    assert run(*words, "--json", "first.json")[0] == 4
    assert run("report", "first.json", "--skip-list", "skips.py") == (0, "skip list: skips.py")
    listed = (tmp_path / "skips.py").read_text(encoding="utf-8")
    assert '"tanh": [\n        DecorateInfo(unittest.skip("wrong: aten::tanh of float32' in listed
    assert '"erf": [\n        DecorateInfo(unittest.skip("unsupported: ' in listed
    code, told = run(*words, "--skip-operations", "skips.py", "--json", "second.json")
    assert (code, told.endswith("; 4 withheld by skips.py")) == (0, True), told
    results: list[dict[str, Any]] = json.loads((tmp_path / "second.json").read_text(encoding="utf-8"))["results"]
    names = {result["check"].rpartition(".")[2] for result in results if result["kind"] == "withheld"}
    assert names == {"tanh", "erf"}
    assert {result["status"] for result in results if result["kind"] != "withheld"} == {"passed"}
    assert run("report", "second.json", "--skip-list", "again.py") == (0, "skip list: again.py")
    assert (tmp_path / "again.py").read_text(encoding="utf-8") == listed  # nothing is lost by another report
    assert run("replay", "ops.full.erf", "reference-split", "--device", "simx:0")[0] == 5  # it is not left out there
