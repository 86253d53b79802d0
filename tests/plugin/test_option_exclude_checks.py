"""``--gradconform-exclude-checks GLOB``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Judge = Callable[..., pytest.RunResult]


def test_excluding_checks_by_a_glob_makes_the_run_incomplete(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge("--gradconform-exclude-checks=split.*", "-v", *processes)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*full.gradients.mlp*", "*incomplete, no verdict*"])


def test_the_ini_file_and_the_environment_can_set_the_option(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_EXCLUDE_CHECKS", "split.*")
    judge().assert_outcomes(passed=1)
    pytester.makeini("[pytest]\ngradconform_exclude_checks = hooks.*")
    judge().assert_outcomes(passed=2)


def test_a_glob_that_matches_nothing_is_refused(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge("--gradconform-exclude-checks=nothing.*", *processes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*check pattern 'nothing.[*]' matches no check*"])


def test_excluding_every_check_is_refused(judge: Judge) -> None:
    result = judge("--gradconform-exclude-checks=*")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*the selection excludes all *"])
