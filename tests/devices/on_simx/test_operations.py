"""Single operations and blocks on a faulty simx: the operation is named, and above which size it is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradconform.plugins.devices import simx
from gradconform.reading.report import read_report
from gradconform.report.page.pages import report_markdown
from gradconform.results import Report, Result
from gradconform.run.run import check_stage_backward


def judged(**options: Any) -> Report:
    return check_stage_backward("reference-split", device="simx:0", **options)


def names_in(result: Result) -> set[str]:
    return {name for finding in result.findings for name in (finding["cause"] or {}).get("names", ())}


#: An operation that is wrong, in which way, the entry that calls it, and what its cause is.
WRONG = {
    "forward": ("aten::linalg_cholesky_ex", "transpose", "linalg.cholesky", "operation_wrong"),
    # Its forward puts out memory that nobody has written, which is no reason to accuse it.
    "behind what leaves memory unwritten": (
        "aten::_ctc_loss_backward", "index", "nn.functional.ctc_loss", "operation_wrong",
    ),
    # Torch composes celu of elu, and binary_cross_entropy_with_logits of log_sigmoid, which is composed itself.
    "inside a composed one": ("aten::elu", "index", "nn.functional.celu", "operation_wrong"),
    "two levels inside": (
        "aten::log_sigmoid_forward", "index", "nn.functional.binary_cross_entropy_with_logits", "operation_wrong",
    ),
    # float64 takes another branch, by the last bit.
    "where float64 tells nothing": ("aten::_pdist_backward", "transpose", "nn.functional.pdist", "operation_wrong"),
    "one that draws": ("aten::native_dropout", "index", "nn.functional.dropout", "operation_draws"),
    "behind one that draws": (
        "aten::native_dropout_backward", "index", "nn.functional.dropout", "operation_wrong",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_operation_is_named_and_nothing_else_is_blamed(name: str) -> None:
    operation, way, entry, kind = WRONG[name]
    with simx.inject(wrong=f"{operation}:{way}"):
        report = judged(operation=entry)
    assert {(result.status, result.kind) for result in report} == {("error", "device")}
    assert all(operation in names_in(result) for result in report)
    assert {finding["cause"]["kind"] for result in report for finding in result.findings} == {kind}
    assert {result.status for result in judged(operation=entry)} == {"passed"}


def test_an_operation_that_the_cpu_lacks_is_a_hint_not_a_cause() -> None:
    with simx.inject(wrong="aten::_thnn_fused_gru_cell:index"):
        report = judged(operation="nn.GRU")
    assert {(result.status, result.kind) for result in report} == {("error", "device")}
    hint = "no single operation was found wrong; operations that only this device has, not compared: aten::_thnn_fused"
    assert all(hint in result.message for result in report)
    assert {finding["cause"] and finding["cause"]["kind"] for result in report for finding in result.findings} == {None}


def test_a_report_of_a_wrong_device_is_read_back_and_rendered(tmp_path: Path) -> None:
    with simx.inject(wrong="aten::linalg_cholesky_ex:index"):
        report = judged(operation="linalg.cholesky")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report.to_dict()), encoding="utf-8")
    again = read_report(path)
    assert [result.to_dict() for result in again] == [result.to_dict() for result in report]
    assert "wrong: linalg.cholesky (aten::linalg\\_cholesky\\_ex of float32" in report_markdown(again)


def test_random_operations_pass_on_a_right_device() -> None:
    drawing = ("dropout", "feature_alpha_dropout.with_train", "rrelu", "fractional_max_pool2d", "alpha_dropout")
    report = judged(operation=[f"nn.functional.{name}" for name in drawing] + ["normal", "nn.TransformerEncoderLayer"])
    assert [(result.check, result.message) for result in report if result.status != "passed"] == []


def test_a_kernel_wrong_above_a_size_is_bounded_by_the_sizes_of_a_block() -> None:
    with simx.inject(wrong="aten::mul:index", wrong_above=2**15):
        report = judged(block="swiglu")
    rungs = {result.check.rpartition(".")[2]: result for result in report if result.check.startswith("blocks.full.")}
    wrong = {rung for rung, result in rungs.items() if result.status != "passed"}
    # The gated states of swiglu have 8/3 times as many values as the hidden ones.
    assert wrong == {"below-2-15", "at-2-15", "above-2-15"}
    assert all(rungs[rung].kind == "device" and "aten::mul" in names_in(rungs[rung]) for rung in wrong)


def test_a_kernel_wrong_above_a_power_of_two_fails_only_at_the_larger_size() -> None:
    with simx.inject(wrong="aten::mul:index", wrong_above=2**15):
        report = judged(block="rms-norm")
    wrong = {result.check.rpartition(".")[2] for result in report if result.status != "passed"}
    assert wrong == {"above-2-15"}


def test_an_operation_whose_result_has_gaps_gets_enough_memory() -> None:
    """The solution of an overdetermined system is a view with gaps: simx kept too little memory for it, once."""
    report = judged(operation="linalg.lstsq*")
    assert {result.status for result in report} == {"passed"}
