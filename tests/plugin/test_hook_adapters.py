"""``pytest_gradconform_adapters``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradconform.plugins.pytest import hookspec

Judge = Callable[..., pytest.RunResult]


def test_the_example_registers_a_target(
    judge: Judge, pytester: pytest.Pytester, example_of: Callable[[Any], str], processes: tuple[str, ...]
) -> None:
    pytester.makeconftest(example_of(hookspec.pytest_gradconform_adapters))
    result = judge(*processes, target="ours")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["gradconform * judges autograd, named as ours"])


def test_a_decorated_test_may_name_a_registered_target(
    pytester: pytest.Pytester, example_of: Callable[[Any], str]
) -> None:
    pytester.makeconftest(example_of(hookspec.pytest_gradconform_adapters))
    pytester.makepyfile(
        """
        import gradconform

        @gradconform.parametrize_checks("ours", profile="quick", checks="full.gradients.mlp")
        def test_conformance(check):
            check()
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_name_already_in_use_is_refused(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_gradconform_adapters(config): return {'torch': object()}")
    result = judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*pytest_gradconform_adapters uses a taken name: 'torch'; choose another name"])
