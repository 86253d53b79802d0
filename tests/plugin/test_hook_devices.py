"""``pytest_gradconform_devices``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradconform.plugins.pytest import hookspec

Judge = Callable[..., pytest.RunResult]


def test_the_example_runs(
    judge: Judge, pytester: pytest.Pytester, example_of: Callable[[Any], str], processes: tuple[str, ...]
) -> None:
    pytester.makeconftest(example_of(hookspec.pytest_gradconform_devices))
    judge("--gradconform-device=cpu:0", *processes).assert_outcomes(passed=2)


def test_the_hook_is_called_before_a_device_is_judged(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_gradconform_devices(config): return ['abacus']")
    result = judge("--gradconform-device=abacus")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*device 'abacus' cannot be used: *; pytest_gradconform_devices added: abacus"])
