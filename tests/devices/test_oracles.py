"""The oracles that need no second device: each finds a kernel that is wrong on the CPU, and accuses no right one."""

from __future__ import annotations

import pytest

from gradconform.report.device_verdict import standing_of_devices
from gradconform.results import Report, Result
from gradconform.run.run import check_stage_backward

from .planted import planted, tanh_backward_ignoring_strides


def judged(operation: str, oracle: str, **options: object) -> Report:
    return check_stage_backward("reference-split", operation=operation, oracle=oracle, profile="quick", **options)


def result_of(report: Report, check: str) -> Result:
    (found,) = [result for result in report if result.check == check]
    return found


def test_a_kernel_that_ignores_strides_is_found_by_its_layouts_alone() -> None:
    with planted("tanh_backward", tanh_backward_ignoring_strides):
        report = judged("tanh", "layout")
    assert {result_of(report, f"ops.{way}.tanh").status for way in ("full", "split")} == {"passed"}
    found = result_of(report, "ops.layout.tanh")
    assert (found.status, found.kind) == ("error", "device")
    (finding,) = found.findings
    assert finding["where"] == "aten::tanh_backward"
    assert finding["cause"]["kind"] == "layout_ignored"
    assert finding["cause"]["names"] == ["aten::tanh_backward", "argument 0 (grad_output)"]
    assert "autograd calls it with" in finding["text"]
    assert finding["headroom"] > 1000
    assert result_of(judged("tanh", "layout"), "ops.layout.tanh").status == "passed"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_right_kernels_pass_in_every_layout(dtype: str) -> None:
    operations = ["sin", "sort", "nn.functional.conv2d", "nn.functional.layer_norm", "linalg.det", "index_add", "lu"]
    report = judged(",".join(operations).split(","), "layout", dtype=dtype, checks="ops.layout.*")
    layouts = [result for result in report if result.check.startswith("ops.layout.")]
    wrong = [(result.check, result.message) for result in layouts if result.status == "error"]
    assert [check for check, _ in wrong if check != "ops.layout.nn.functional.layer_norm"] == []
    assert sum(result.oracle["compared"] for result in layouts if result.oracle) > 500


def test_a_report_counts_what_was_compared_and_what_was_not_tried() -> None:
    report = judged("tanh", "layout", checks="ops.layout.*")
    told = result_of(report, "ops.layout.tanh").oracle
    assert told is not None
    assert "aten::tanh_backward" in told["tried"]
    assert told["compared"] > 10
    assert "aten::view" in told["not_tried"]["a view, random, or of memory alone"]
    (line,) = standing_of_devices(report)
    assert f"{told['compared']} kernel calls compared in other layouts" in line.text
