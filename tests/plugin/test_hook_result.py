"""``pytest_gradconform_result``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradconform.plugins.pytest import hookspec

#: See conftest.py.
IN_TWO = True

Judge = Callable[..., pytest.RunResult]


def test_the_example_gets_each_result_once(
    judge: Judge, pytester: pytest.Pytester, example_of: Callable[[Any], str], processes: tuple[str, ...]
) -> None:
    pytester.makeconftest(example_of(hookspec.pytest_gradconform_result))
    result = judge("-s", *processes)
    seen = sorted(line.partition("SAW ")[2].rstrip(".") for line in result.stdout.lines if "SAW " in line)
    assert seen == ["full.gradients.mlp passed", "split.gradients.mlp passed"]
