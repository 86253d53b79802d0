"""A report as a list of skips: what torch's own device tests make of it, and which operations stand in it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform import check_stage_backward
from gradconform.cli import main
from gradconform.report.skip_list import skip_list
from gradconform.results import Report, Result

#: A device test over operations, as torch's own are written.
TINY = """
import torch
from torch.testing._internal.common_device_type import CPUTestBase, instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_utils import TestCase, run_tests

class TestTiny(TestCase):
    @ops([one for one in op_db if one.full_name in {"sin", "cos"}], allowed_dtypes=(torch.float32, torch.float64))
    def test_it(self, device, dtype, op):
        pass

SET_UP
instantiate_device_type_tests(TestTiny, globals(), only_for="cpu")
run_tests()
"""
SKIPPED = "test_it_sin_cpu_float32 (__main__.TestTinyCPU.test_it_sin_cpu_float32) ... skipped 'crashed: by SIGABRT'"


def result(check: str, **values: Any) -> Result:
    given = {"status": "unsupported", "kind": "environment", "level": "MUST", "device": "npu:1", "dtype": "float32"}
    return Result(check=check, requirement="B MUST", **{**given, **values})


def report_of(*results: Result) -> Report:
    empty = check_stage_backward("reference-split", operation="sin", checks="ops.full.sin", profile="quick")
    empty.results[:] = results
    return replace(empty, environment={"torch": "2.13.0"})


def entries_of(report: Report) -> str:
    return skip_list(report).partition("OP_OVERRIDES = {\n")[2].partition("}\n")[0]


def test_an_entry_has_torchs_operation_name_and_its_wrong_or_unsupported_dtypes() -> None:
    crashed = {"status": "error", "ended": "crash", "message": "by SIGABRT\nand more"}
    report = report_of(
        result("ops.full.sin", message="raised NotImplementedError"),
        result("ops.split.sin", message="raised NotImplementedError", dtype="bfloat16", device="npu:0"),
        result("ops.full.sin", dtype="float64", **crashed),
        result("ops.full.ops.aten._safe_softmax.default", **crashed),
        result("ops.full.view_as_real", **crashed),
        result("ops.full.view_as_real", dtype="bfloat16"),  # which has no complex numbers anywhere
        result("ops.full.cos", status="passed"),
        result("ops.full.tan", status="error", kind="kit"),
        result("ops.split.tan", status="not_run"),
        result("full.gradients.mlp", **crashed),
    )
    assert_expected_inline(
        entries_of(report),
        """\
    "sin": [
        DecorateInfo(unittest.skip("unsupported: raised NotImplementedError"), None, None, device_type="npu", dtypes=(torch.float32, torch.bfloat16)),
        DecorateInfo(unittest.skip("crashed: by SIGABRT"), None, None, device_type="npu", dtypes=(torch.float64,)),
    ],
    "torch.ops.aten._safe_softmax.default": [
        DecorateInfo(unittest.skip("crashed: by SIGABRT"), None, None, device_type="npu", dtypes=(torch.float32,)),
    ],
    "view_as_real": [
        DecorateInfo(unittest.skip("crashed: by SIGABRT"), None, None, device_type="npu", dtypes=(torch.complex64,)),
    ],
""",  # noqa: E501 (lines of the file)
    )


@pytest.mark.parametrize(
    ("words", "set_up"),
    [
        (("skips.py", "tiny.py", "-v"), ""),
        (("tiny.py", "-v"), "import skips; skips.apply(op_db)"),
        (("tiny.py", "-v"), "import skips; CPUTestBase.set_test_configs(op_overrides=skips.OP_OVERRIDES)"),
    ],
    ids=["started by the file", "applied to torch's list", "of a class of device tests"],
)
def test_torch_skips_its_own_device_tests_by_the_list(tmp_path: Path, words: tuple[str, ...], set_up: str) -> None:
    crashed = result("ops.full.sin", device="cpu", status="error", ended="crash", message="by SIGABRT")
    (tmp_path / "skips.py").write_text(skip_list(report_of(crashed)), encoding="utf-8")
    (tmp_path / "tiny.py").write_text(TINY.replace("SET_UP", set_up), encoding="utf-8")
    # Where CI is set, torch's run_tests wants the package xmlrunner.
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path, env={**environment, "PYTORCH_TESTING_DEVICE_ONLY_FOR": "cpu"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert SKIPPED in done.stderr
    assert done.stderr.count(" ... ok\n") == 3


def test_foreign_text_remains_text_in_the_list() -> None:
    attack = '"""\nimport os\n\\" + os.abort() + "\x1b[2J\u202e'
    hostile = result("ops.full.sin", device='npu"+x+"', message=attack)
    report = replace(report_of(hostile), target={"name": attack, "version": "1"}, profile=attack)
    tree = ast.parse(skip_list(report))
    assert {type(node).__name__ for node in tree.body} == {
        "Expr", "Import", "ImportFrom", "Assign", "FunctionDef", "If",
    }  # fmt: skip
    (assigned,) = [node.value for node in tree.body if isinstance(node, ast.Assign)]
    called = {ast.unparse(node.func) for node in ast.walk(assigned) if isinstance(node, ast.Call)}
    assert called == {"DecorateInfo", "unittest.skip"}
    assert "\x1b" not in skip_list(report)


def test_a_report_without_operations_gives_no_list(
    real: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").write_text(real.to_json(), encoding="utf-8")
    assert main(["report", str(tmp_path / "report.json"), "--skip-list", "-"]) == 2
    assert "has no operations; run with --operation all" in capsys.readouterr().err
