"""An operation that errs by some eps is imprecise: it passes, and is told with its worst error."""

from __future__ import annotations

from gradconform.plugins.devices.simx import inject
from gradconform.report.device_verdict import standing_of_devices
from gradconform.report.terminal import closing
from gradconform.results import Report, Result
from gradconform.run.run import check_stage_backward


def judged(eps: int, dtype: str = "float32", **options: str) -> Report:
    with inject(rough=f"aten::log:{eps}", **options):
        return check_stage_backward("reference-split", device="simx:0", dtype=dtype, operation=["log", "exp"])


def imprecise(report: Report) -> set[str]:
    return {operation for result in report for operation in result.imprecise or {}}


def test_an_imprecise_operation_passes_and_its_worst_error_is_reported() -> None:
    report = judged(64)
    assert {result.status for result in report} == {"passed"}
    assert imprecise(report) == {"aten::log"}
    assert all(16 < eps < 256 for result in report for eps in (result.imprecise or {}).values())
    lines = [line.text for line in closing(report, 100)]
    (heading,) = [line for line in lines if "imprecise: " in line]
    assert "imprecise: 1 operation, not wrong" in heading
    assert any("aten::log on simx in float32: " in line and " eps (ops." in line for line in lines)
    assert [Result.from_dict(result.to_dict()).imprecise for result in report] == [one.imprecise for one in report]
    assert any("; 1 operation imprecise by up to " in one.line.text for one in standing_of_devices(report))


def test_a_larger_error_is_wrong() -> None:
    report = judged(4096)
    of_log = [result for result in report if result.check.endswith(".log")]
    assert {(result.status, result.kind) for result in of_log} == {("error", "device")}
    assert all("aten::log is wrong on simx:0 in float32" in result.message for result in of_log)


def test_an_error_that_float64_also_has_is_wrong() -> None:
    report = judged(64, narrow_float64="1")
    assert {result.kind for result in report if result.check.endswith(".log")} == {"device"}


def test_in_an_exact_dtype_no_operation_is_imprecise() -> None:
    report = judged(64, "float64")
    assert {result.status for result in report} == {"passed"}
    assert imprecise(report) == set()
