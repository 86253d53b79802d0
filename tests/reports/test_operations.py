"""How operations stand in a report: the worst of what was found on each."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from gradconform import check_stage_backward
from gradconform.report.sections import sections
from gradconform.results import Report, Result
from gradconform.sources.operations.standings import STANDINGS, standings

FINDING = {
    "kind": "mismatch", "where": "input 0", "action": "B0", "text": "worst at [0]", "sort": "input gradient",
    "raised": None, "headroom": 2.0, "cause": None, "needs": None, "error": 2.0, "bound": 1.0,
}  # fmt: skip


def result(check: str = "ops.full.sin", **values: Any) -> Result:
    given = {
        "status": "passed",
        "level": "MUST",
        "device": "cpu",
        "dtype": "float32",
        "requirement": "B MUST",
        **values,
    }
    return Result(check=check, message="", error_ratio=None, duration_s=0.0, **given)


@cache
def run_of_one_operation() -> Report:
    return check_stage_backward("reference-split", operation="sin", checks="ops.full.sin", profile="quick")


def report_of(*results: Result) -> Report:
    return replace(run_of_one_operation(), results=list(results))


@pytest.mark.parametrize(
    ("values", "standing"),
    [
        ({}, "right"),
        ({"off_device_share": 0.25}, "partly on the CPU"),
        ({"status": "unsupported", "unclaimed": ("split",)}, "not claimed"),
        ({"status": "unsupported", "kind": "environment"}, "unsupported"),
        ({"status": "unsupported", "kind": "withheld"}, "withheld"),
        ({"status": "error", "kind": "kit"}, "not judged"),
        ({"status": "error", "kind": "environment", "ended": "crash"}, "crashed"),
        ({"status": "error", "kind": "environment", "ended": "hang"}, "hung"),
        ({"status": "failed", "kind": "hang"}, "hung"),
        ({"status": "failed", "kind": "mismatch", "findings": (FINDING,)}, "rounding"),
        ({"status": "error", "kind": "device", "findings": (FINDING,)}, "rounding"),
        ({"status": "error", "kind": "device", "findings": ({**FINDING, "headroom": 1e4},)}, "wrong"),
        ({"status": "failed", "kind": "missing", "findings": (FINDING, {**FINDING, "kind": "missing"})}, "wrong"),
        ({"status": "failed", "kind": "refused"}, "wrong"),
    ],
)
def test_a_result_gives_the_state_of_its_operation(values: dict[str, Any], standing: str) -> None:
    ((name, (found, _)),) = standings(report_of(result(**values))).items()
    assert (name, found) == ("sin", standing)


def test_the_worst_result_of_an_operation_decides_its_state() -> None:
    results = [
        result(),
        result("ops.split.sin", status="unsupported", unclaimed=("split",)),
        result(dtype="bfloat16", status="error", kind="environment", ended="crash"),
        result("ops.full.cos"),
        result("ops.full.tan", status="not_run"),
        result("full.gradients.mlp", status="failed"),
    ]
    found = {name: standing for name, (standing, _) in standings(report_of(*results)).items()}
    assert found == {"sin": "crashed", "cos": "right"}


def test_an_operation_that_ran_partly_on_the_cpu_counts_as_right() -> None:
    report = report_of(result("ops.full.cos"), result("ops.full.sin", off_device_share=0.25))
    section = next(one for one in sections(report) if one.heading.startswith("operations: "))
    assert section.heading == "operations: 2 of 2 right, 1 of them partly on the CPU"


def test_a_section_counts_all_operations_and_lists_wrong_ones_worst_first() -> None:
    several = [result(f"ops.full.op{number}", status="unsupported", kind="environment") for number in range(14)]
    wrong = {
        **FINDING,
        "headroom": 1e4,
        "cause": {"kind": "operation_wrong", "names": ["aten::sin", "float32 (3,)", "…"], "text": "…"},
        "needs": {"sample": "3 (1 of 6 fail)"},
    }
    report = report_of(result("ops.full.cos"), *several, result(status="error", kind="device", findings=(wrong,)))
    section = next(one for one in sections(report) if one.heading.startswith("operations: "))
    assert section.heading == "operations: 1 of 16 right"
    assert [(item.number, item.text) for item in section.items] == [
        (1, "wrong: sin (aten::sin of float32 (3,), sample 3 (1 of 6 fail), error 2, bound 1)"),
        (14, f"unsupported: {', '.join(f'op{number}' for number in range(12))}, and 2 more"),
        (1, "right"),
    ]


def test_a_report_without_operations_has_no_section_for_them() -> None:
    report = check_stage_backward("reference-split", checks="full.gradients.mlp")
    assert all("operations" not in section.heading for section in sections(report))


def test_operation_states_start_with_wrong_and_end_with_right() -> None:
    assert (STANDINGS[0], STANDINGS[-1]) == ("wrong", "right")
