"""The oracles that need no second device: each finds a kernel that is wrong on the CPU, and accuses no right one."""

from __future__ import annotations

from typing import Any

import pytest

from gradconform.report.device_verdict import standing_of_devices
from gradconform.results import Report, Result
from gradconform.run.run import check_stage_backward
from gradconform.user_input.values import SelectionError

from .planted import (
    planted,
    tanh_backward_ignoring_strides,
    tanh_backward_mixing_rows,
    tanh_backward_too_large,
)


def judged(operation: str | list[str], oracle: str | list[str], **options: Any) -> Report:
    given = {"profile": "quick", **options}
    return check_stage_backward("reference-split", operation=operation, oracle=oracle, **given)


def result_of(report: Report, check: str) -> Result:
    (found,) = [result for result in report if result.check == check]
    return found


def test_only_the_layout_oracle_finds_a_kernel_that_ignores_strides() -> None:
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
    report = judged(operations, "layout", dtype=dtype, checks="ops.layout.*")
    layouts = [result for result in report if result.check.startswith("ops.layout.")]
    wrong = [(result.check, result.message) for result in layouts if result.status == "error"]
    assert [check for check, _ in wrong if check != "ops.layout.nn.functional.layer_norm"] == []
    assert sum(result.oracle["compared"] for result in layouts if result.oracle) > 200


def test_a_report_counts_compared_calls_and_lists_untried_ones() -> None:
    report = judged("tanh", "layout", checks="ops.layout.*")
    told = result_of(report, "ops.layout.tanh").oracle
    assert told is not None
    assert "aten::tanh_backward" in told["tried"]
    assert told["compared"] > 10
    assert "aten::view" in told["not_tried"]["a view, random, or of memory alone"]
    (one,) = standing_of_devices(report)
    assert f"{told['compared']} kernel calls compared in other layouts" in one.line.text


def test_only_finite_differences_find_a_formula_wrong_on_every_device() -> None:
    with planted("tanh_backward", tanh_backward_too_large):
        report = judged("tanh", ["layout", "finite-differences"], dtype="float64")
    others = ("full", "split", "layout")
    assert {result_of(report, f"ops.{way}.tanh").status for way in others} == {"passed"}
    found = result_of(report, "ops.finite-differences.tanh")
    assert (found.status, found.kind) == ("error", "device")
    assert found.findings[0]["cause"]["kind"] == "slope_wrong"
    assert "finite differences give" in found.findings[0]["text"]
    right = judged("tanh", "finite-differences", dtype="float64")
    assert result_of(right, "ops.finite-differences.tanh").status == "passed"


def test_an_operation_marked_failing_by_torchs_tests_is_skipped_and_reported() -> None:
    report = judged("fmod", "finite-differences", dtype="float64")  # marked in every release
    found = result_of(report, "ops.finite-differences.fmod")
    assert found.status == "unsupported"
    assert "marked as failing by torch's own test: Skipped!" in found.message
    assert found.oracle is not None
    assert found.oracle["compared"] == 0


def test_a_sample_with_an_output_not_in_float64_is_not_tried() -> None:
    """A sample of cumprod asks for float32: a step of 1e-6 is lost in its rounding."""
    report = judged("cumprod", "finite-differences", dtype="float64")
    found = result_of(report, "ops.finite-differences.cumprod")
    assert found.status == "passed"
    assert found.oracle is not None
    assert len(found.oracle["not_tried"]["an output is not float64"]) == 1


def test_only_the_additive_oracle_finds_a_backward_that_mixes_rows() -> None:
    with planted("tanh_backward", tanh_backward_mixing_rows):
        report = judged("tanh", ["layout", "additive"])
    assert {result_of(report, f"ops.{way}.tanh").status for way in ("full", "split", "layout")} == {"passed"}
    found = result_of(report, "ops.additive.tanh")
    assert (found.status, found.kind) == ("error", "device")
    assert found.findings[0]["cause"]["kind"] == "rows_mixed"
    assert "from its rows in micro-batches" in found.findings[0]["text"]
    assert result_of(judged("tanh", "additive"), "ops.additive.tanh").status == "passed"


def test_an_operation_whose_rows_depend_on_each_other_is_not_tried() -> None:
    found = result_of(judged("cumsum", "additive"), "ops.additive.cumsum")
    assert found.oracle is not None
    assert "its forward has no rows, or does not treat them independently" in found.oracle["not_tried"]


def test_sums_that_overflow_in_another_order_are_not_mixed_rows() -> None:
    report = judged("float_power", "additive", dtype="float16", profile="standard", checks="ops.additive.*")
    assert result_of(report, "ops.additive.float_power").status == "passed"


def test_an_oracle_needs_operations() -> None:
    with pytest.raises(SelectionError, match="--oracle requires operations, and none is selected"):
        check_stage_backward("reference-split", oracle="layout")
