"""``pytest --gradconform TARGET`` in a folder with nothing in it, or beside somebody's own tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import gradconform

#: See conftest.py.
IN_TWO = True

Judge = Callable[..., pytest.RunResult]

REQUIREMENT = "B MUST return plain autograd's input gradients and accumulate its parameter gradients, on"


def without_durations(text: str) -> Any:
    report = json.loads(text)
    del report["made"]
    for result in report["results"]:
        del result["duration_s"]
    return report


def test_with_any_number_of_processes_the_report_equals_the_librarys(
    judge: Judge, pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    checks = ("full.gradients.*", "split.gradients.*", "hooks.*")
    pytester.makepyfile(test_own="def test_own(): pass")
    result = judge("--gradconform-json=report.json", "--junitxml=junit.xml", *processes, target="torch", checks=checks)
    library = gradconform.check_stage_backward("torch", profile="quick", checks=checks)
    ours = without_durations((pytester.path / "report.json").read_text())
    assert ours == without_durations(library.to_json())
    told, counts = result.parseoutcomes(), library.summary
    should = counts["failed_should"]
    assert told == {"failed": counts["failed"] - should, "passed": counts["passed"] + 1, "xfailed": should}
    cases = ET.parse(pytester.path / "junit.xml").getroot().iter("testcase")  # noqa: S314 (pytest has written it)
    named = {found.get("value") for case in cases for found in case.iter("property") if found.get("name") == "check"}
    assert named == {result.check for result in library.results}
    result.stdout.fnmatch_lines(
        [
            "*_ MUST split.gradients.embedding[[]cpu-float32] _*",
            "gradconform * judges torch *",
            "*seed 20",
            "*failed MUST: *",
            "*failed SHOULD*",
            "*checks of contract 1.3, profile quick, ran; * not selected",
            "torch * does NOT conform: * MUST and * SHOULD failed; the contract was not run in full",
        ]
    )


@pytest.mark.slow
def test_with_any_number_of_processes_a_selection_is_incomplete_and_lf_works(
    judge: Judge, double: str, processes: tuple[str, ...]
) -> None:
    selected = judge("-k", "split", "-rs", *processes, target=double)
    selected.stdout.fnmatch_lines(["*incomplete, no verdict: 0 of*", "SKIPPED [[]1] gradconform: *not claimed: split*"])
    assert selected.ret == pytest.ExitCode.NO_TESTS_COLLECTED  # it judged nothing, and must not end well
    if processes != ("-n2",):  # two more runs of three processes would show nothing new
        judge(*processes, target=double)
        judge("--lf", *processes, target=double).assert_outcomes(failed=1, deselected=1)


def test_an_empty_folder_collects_one_item_per_check(judge: Judge) -> None:
    result = judge("-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*collected 2 items*", *(f"gradconform::{kind}.gradients.mlp[[]cpu-float32]*" for kind in ("full", "split"))]
    )


def test_a_selection_by_keyword_is_incomplete(judge: Judge) -> None:
    result = judge("-k", "full")
    result.assert_outcomes(passed=1, deselected=1)
    result.stdout.fnmatch_lines(["*incomplete, no verdict: 1 of * checks ran, none failed*"])


def test_x_stops_at_the_first_failure(judge: Judge, double: str) -> None:
    result = judge("-x", target=double, checks=("full.gradients.*",))
    result.assert_outcomes(failed=1, passed=0, skipped=0)
    result.stdout.fnmatch_lines(
        ["*planned but not run*", "*does NOT conform: 1 MUST failed; the contract was not run*"]
    )


def test_collect_only_lists_the_items_and_gives_no_verdict(judge: Judge, pytester: pytest.Pytester) -> None:
    result = judge("--collect-only", "-q", "--gradconform-json=report.json")
    result.stdout.fnmatch_lines(["gradconform::full.gradients.mlp[[]cpu-float32]", "2 tests collected*"])
    result.stdout.no_fnmatch_line("*conform* contract*")
    assert not (pytester.path / "report.json").exists()


def test_a_node_id_selects_one_check(judge: Judge) -> None:
    result = judge("gradconform::split.gradients.mlp[cpu-float32]", "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*incomplete*"])


def test_an_unknown_node_id_is_refused_with_the_nearest_check(judge: Judge) -> None:
    result = judge("gradconform::split.gradients.mpl[cpu-float32]")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*no such check*nearest: split.gradients.mlp*"])


def test_checks_run_together_with_the_users_own_tests(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own="def test_own(): pass")
    judge().assert_outcomes(passed=3)
    judge("test_own.py::test_own").assert_outcomes(passed=3)


def test_a_failure_shows_the_kits_message_without_a_traceback(judge: Judge, double: str) -> None:
    result = judge(target=double, checks=("full.gradients.mlp",))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*_ MUST full.gradients.mlp[[]cpu-float32] _*",
            "2.0 × micro-batch 0: counted twice: after B, an input gradient has a wrong value",
            "MUST failed: double.py on cpu in float32",
            f"{REQUIREMENT} stage mlp (an MLP with biases).",
            "program F0 B0 F1 B1",
            "input 0, after B0: worst at *: expected *, got *; error *, bound *, error/bound *",
        ]
    )
    result.stdout.fnmatch_lines(["FAILED gradconform::full.gradients.mlp[[]cpu-float32] - 2.0 × micro-batch*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*.py:*: *")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_unclaimed_checks_are_skipped_with_the_reason(judge: Judge, double: str) -> None:
    result = judge("-rs", target=double, checks=("full.gradients.mlp", "split.gradients.mlp"))
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]1] gradconform: *not claimed: split*"])


def test_a_failed_should_is_reported_and_fails_no_test(judge: Judge) -> None:
    result = judge("-rx", target="torch", checks=("hooks.*",))
    assert result.parseoutcomes()["xfailed"] > 0
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*failed SHOULD*", "*SHOULD*"])


def test_runxfail_makes_a_failed_should_fail(judge: Judge) -> None:
    assert judge("--runxfail", target="torch", checks=("hooks.*",)).ret == pytest.ExitCode.TESTS_FAILED


def test_an_adapter_that_cannot_open_is_an_adapter_error(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        adapter="""
        class Broken:
            name = "broken"
            capabilities = {}

            def open(self, stage, spec):
                raise RuntimeError("no such stage")
        """
    )
    result = judge(target="adapter.py:Broken")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["MUST error (adapter): adapter.py:Broken on cpu in float32", "*error: adapter*"])


def test_junit_has_the_requirement_of_each_test(judge: Judge, pytester: pytest.Pytester) -> None:
    judge("--junitxml=junit.xml")
    case = ET.parse(pytester.path / "junit.xml").getroot().find(".//testcase")  # noqa: S314 (pytest has written it)
    assert case is not None
    said = {found.get("name"): found.get("value") for found in case.iter("property")}
    assert said["check"] == "full.gradients.mlp"
    assert said["level"] == "MUST"
    assert said["requirement"] == f"{REQUIREMENT} stage mlp (an MLP with biases)."
    assert said["headroom"] == "0.0"
    assert case.get("name") == "full.gradients.mlp[cpu-float32]"


def test_turning_warnings_into_errors_does_not_change_the_results(judge: Judge) -> None:
    judge("-W", "error", target="torch", checks=("full.gradients.*",)).assert_outcomes(
        passed=judge(target="torch", checks=("full.gradients.*",)).parseoutcomes()["passed"]
    )
