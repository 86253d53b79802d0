"""``pytest_gradconform_report``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradconform.plugins.pytest import hookspec

#: See conftest.py.
IN_TWO = True

Judge = Callable[..., pytest.RunResult]


def test_the_example_gets_the_final_report_once(
    judge: Judge, pytester: pytest.Pytester, example_of: Callable[[Any], str], processes: tuple[str, ...]
) -> None:
    pytester.makeconftest(example_of(hookspec.pytest_gradconform_report))
    result = judge("-s", *processes)
    seen = [line.partition("VERDICT ")[2] for line in result.stdout.lines if "VERDICT " in line]
    assert seen == ["incomplete 2"]


def test_the_hook_is_called_before_the_json_report_is_written(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        from pathlib import Path

        def pytest_gradconform_report(report, config):
            assert not Path("report.json").exists()
            print("REPORT", report.target["name"])
        """
    )
    result = judge("-s", "--gradconform-json=report.json")
    result.stdout.fnmatch_lines(["*REPORT reference-split"])
    assert (pytester.path / "report.json").exists()
