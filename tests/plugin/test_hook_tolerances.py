"""``pytest_gradconform_tolerances``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradconform import tolerance
from gradconform.plugins.pytest import hookspec

Judge = Callable[..., pytest.RunResult]


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tolerances hold for the process; the inner pytest of most tests here shares this one."""
    monkeypatch.setattr(tolerance, "_OVERRIDES", {})


def test_the_example_changes_a_tolerance_and_the_report_has_it(
    judge: Judge, pytester: pytest.Pytester, example_of: Callable[[Any], str], processes: tuple[str, ...]
) -> None:
    pytester.makeconftest(example_of(hookspec.pytest_gradconform_tolerances))
    judge("--gradconform-json=report.json", *processes).assert_outcomes(passed=2)
    report = json.loads((pytester.path / "report.json").read_text())
    assert report["environment"]["tolerances_changed"] == {"float32": 8.0}
    assert tolerance.floor_factor(torch.float32) == 8.0


def test_a_changed_tolerance_decides_whether_a_check_passes(
    judge: Judge, pytester: pytest.Pytester, double: str
) -> None:
    pytester.makeconftest("def pytest_gradconform_tolerances(config): return {'float32': 1e9}")
    judge(target=double, checks=("full.gradients.mlp",)).assert_outcomes(passed=1)


def test_a_tolerance_that_is_not_a_positive_number_is_refused(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeconftest("def pytest_gradconform_tolerances(config): return {'float32': -1}")
    result = judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*tolerance 'float32' = -1; expected a positive number*"])
