"""``--gradconform-checks GLOB``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Judge = Callable[..., pytest.RunResult]


def test_several_globs_are_combined(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge(*processes, checks=("full.gradients.mlp", "split.gradients.m?p"))
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["2 of * checks of contract 1.3, profile quick, ran; * not selected"])
    result.stdout.fnmatch_lines(["*incomplete, no verdict*"])


def test_the_ini_file_and_the_environment_can_set_the_option(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_CHECKS", "full.gradients.mlp")
    judge(checks=()).assert_outcomes(passed=1)
    pytester.makeini("[pytest]\ngradconform_checks = full.gradients.mlp split.gradients.mlp")
    judge(checks=()).assert_outcomes(passed=2)


def test_a_glob_that_matches_nothing_is_refused_with_the_nearest_ids(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge(*processes, checks=("full.gradients.mpl",))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'full.gradients.mpl' matches no check; nearest: full.gradients.mlp*"])
