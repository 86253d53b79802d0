"""``pytest_gradconform_stages``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gradconform.plugins.pytest import hookspec

Judge = Callable[..., pytest.RunResult]

CONFTEST = """
from torch import nn
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages import StageCase

def pytest_gradconform_stages(config):
    return [StageCase({name!r}, "a stage of ours", lambda: nn.Linear(5, 3), (Normal((7, 5)),))]
"""


def test_the_example_stage_is_in_the_fixture_and_in_the_run(
    pytester: pytest.Pytester, example_of: Callable[[Any], str], processes: tuple[str, ...]
) -> None:
    pytester.makeconftest(example_of(hookspec.pytest_gradconform_stages))
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gradconform_stages("our-*")
        def test_own(gradconform_stage):
            gradconform_stage.module(*gradconform_stage.args())
        """
    )
    result = pytester.runpytest(
        "-v", "--gradconform=reference-split", "-k", "our-block and gradients or test_own", *processes
    )
    assert result.parseoutcomes()["passed"] == 16
    result.stdout.fnmatch_lines_random(
        [
            "*gradconform::stage.our-block.full.gradients[[]cpu-float32]*",
            "*gradconform::stage.our-block.split.gradients[[]cpu-float32]*",
            "*test_own[[]our-block]*",
        ]
    )
    result.stdout.fnmatch_lines(["* checks on added stages, not part of the contract: 15 passed, 0 failed, *"])


def test_added_checks_do_not_change_the_contract_counts(pytester: pytest.Pytester, double: str) -> None:
    pytester.makeconftest(CONFTEST.format(name="ours"))
    result = pytester.runpytest(
        "--gradconform", double, "--gradconform-profile=quick", "--gradconform-json=report.json", "-k", "stage.ours"
    )
    report = json.loads((pytester.path / "report.json").read_text())
    assert report["results"] == []
    assert report["verdict"] == "incomplete"
    assert report["summary"]["manifest"] == report["summary"]["planned"]
    result.stdout.fnmatch_lines(
        [
            "stage.ours.full.gradients [[]cpu float32]: program F0 B0 F1 B1",
            "36 checks on added stages*2 passed, 9 failed, 25 unsupported*",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_globs_also_restrict_added_checks(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.format(name="ours"))
    judge("-v", checks=("full.*", "*.mlp")).stdout.no_fnmatch_line("*stage.ours*")


def test_a_stage_name_of_the_zoo_is_refused(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.format(name="mlp"))
    result = judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pytest_gradconform_stages: the stage name 'mlp' is taken*"])
