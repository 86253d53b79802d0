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


def test_the_example_joins_the_fixture_and_the_run(
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
    result = pytester.runpytest("-v", "--gradconform=reference-split", "-k", "our", *processes)
    assert result.parseoutcomes()["passed"] == 3
    result.stdout.fnmatch_lines_random(
        [
            "*gradconform::added.full.our-block[[]cpu-float32]*",
            "*gradconform::added.split.our-block[[]cpu-float32]*",
            "*test_own[[]our-block]*",
        ]
    )
    result.stdout.fnmatch_lines(["2 checks on added stages, no part of the contract: 2 passed, *"])


def test_added_checks_take_no_part_in_the_contracts_counts(pytester: pytest.Pytester, double: str) -> None:
    pytester.makeconftest(CONFTEST.format(name="ours"))
    result = pytester.runpytest(
        "--gradconform", double, "--gradconform-profile=quick", "--gradconform-json=report.json", "-k", "added"
    )
    report = json.loads((pytester.path / "report.json").read_text())
    assert report["results"] == []
    assert report["verdict"] == "incomplete"
    assert report["summary"]["manifest"] == report["summary"]["planned"]
    result.stdout.fnmatch_lines(
        ["added.full.ours [[]cpu float32]: program F0 B0 F1 B1", "2 checks on added stages*1 failed, 1 unsupported*"]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_globs_narrow_added_checks_too(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.format(name="ours"))
    judge("-v", checks=("full.*", "*.mlp")).stdout.no_fnmatch_line("*added.*")


def test_a_name_of_the_zoo_is_refused(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.format(name="mlp"))
    result = judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pytest_gradconform_stages adds a stage 'mlp', and that name is taken*"])
