"""``--gradconform-dtype DTYPE``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Judge = Callable[..., pytest.RunResult]


def test_a_check_is_collected_once_per_dtype(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge("--gradconform-dtype=float64", "--gradconform-dtype=bfloat16", "-v", *processes)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines_random(["*full.gradients.mlp[[]cpu-float64]*", "*full.gradients.mlp[[]cpu-bfloat16]*"])


def test_the_ini_file_and_the_environment_can_set_several_dtypes(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_DTYPE", "float64, bfloat16")
    judge().assert_outcomes(passed=4)
    pytester.makeini("[pytest]\ngradconform_dtype = float16 float64 bfloat16")
    judge().assert_outcomes(passed=6)


def test_an_unsupported_dtype_is_refused_with_the_nearest_dtype(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge("--gradconform-dtype=float31", *processes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unsupported dtype 'float31' (did you mean float32?); expected*"])
