"""``@gradconform.parametrize_checks(TARGET)`` over a user's own test."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

import gradconform

TEST = """
import gradconform

@gradconform.parametrize_checks({arguments})
def test_conformance(check):
    assert check.level in ("MUST", "SHOULD")
    assert check.level in check.requirement and check.name.startswith(check.id)
    check()
"""


def test_the_three_line_form_runs_the_contract_and_joins_the_report(
    pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    arguments = 'profile="quick", checks=["full.gradients.mlp", "split.gradients.embedding"], dtype="float64"'
    pytester.makepyfile(TEST.format(arguments=f'"torch", {arguments}'))
    result = pytester.runpytest("-v", "--gradconform-json=report.json", *processes)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "*test_conformance[[]full.gradients.mlp[[]cpu-float64]]*",
            "E *CheckFailedError: never accumulated: after W, a parameter gradient is None*",
            "2 of * checks of contract 1.3, profile quick, ran; * not selected",
            "torch * does NOT conform: 1 MUST failed; the contract was not run in full",
        ]
    )
    result.stdout.no_fnmatch_line("*bound_check.py*")
    told = json.loads((pytester.path / "report.json").read_text())
    assert [found["status"] for found in told["results"]] == ["passed", "failed"]


def test_options_replace_missing_arguments_of_the_decorator(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TEST.format(arguments='checks="full.gradients.mlp"'))
    pytester.makeini("[pytest]\ngradconform_dtype = float64 bfloat16\ngradconform_profile = quick")
    result = pytester.runpytest("-v", "--gradconform=autograd", "--gradconform-checks=split.gradients.mlp")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines_random(
        ["gradconform::split.gradients.mlp[[]cpu-bfloat16]*", "*_conformance[[]full.gradients.mlp[[]cpu-float64]]*"]
    )


def test_a_target_may_be_an_object_and_a_dtype_a_torch_dtype(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import gradconform, torch
        from gradconform.reference.autograd import AutogradAdapter

        @gradconform.parametrize_checks(
            AutogradAdapter(), dtype=[torch.float64], device=torch.device("cpu"), profile="quick",
            checks="*.gradients.mlp", exclude_checks="hooks.*", seed=5,
        )
        def test_conformance(check):
            check()
            assert check.result.status == "passed"
        """
    )
    result = pytester.runpytest()
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*checks on cpu float64, seed 5"])


def test_unsupported_checks_skip_and_a_failed_should_is_an_expected_failure(
    pytester: pytest.Pytester, double: str
) -> None:
    pytester.makepyfile(test_skip=TEST.format(arguments=f'"{double}", profile="quick", checks="split.gradients.mlp"'))
    pytester.makepyfile(test_xfail=TEST.format(arguments='"torch", profile="quick", checks="hooks.*"'))
    told = pytester.runpytest().parseoutcomes()
    assert told["skipped"] == 1
    assert told["xfailed"] > 0
    assert "failed" not in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "*parametrize_checks has no target; give it one, or pass --gradconform TARGET*"),
        ('"trch"', "*target 'trch' is not a registered name*"),
        ('"torch", dtype="float31"', "*unsupported dtype 'float31'*"),
        ('"torch", checks="nothing"', "*check pattern 'nothing' matches no check*"),
    ],
)
def test_an_invalid_decorator_argument_is_a_collection_error_with_the_kits_message(
    pytester: pytest.Pytester, arguments: str, told: str
) -> None:
    pytester.makepyfile(TEST.format(arguments=arguments))
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([told])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_example_in_the_docstring_runs(pytester: pytest.Pytester, example_of: Callable[[Any], str]) -> None:
    pytester.makepyfile(example_of(gradconform.parametrize_checks))
    told = pytester.runpytest().parseoutcomes()
    assert told.keys() == {"passed"}
