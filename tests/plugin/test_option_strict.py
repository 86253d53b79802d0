"""``--gradconform-strict``."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

Judge = Callable[..., pytest.RunResult]


def test_a_failed_should_fails_its_test_and_decides_the_verdict(
    judge: Judge, pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    options = ("--gradconform-strict", "--gradconform-json=report.json", *processes)
    result = judge(*options, target="torch", checks=("hooks.*",))
    assert result.parseoutcomes()["failed"] > 0
    assert "xfailed" not in result.parseoutcomes()
    result.stdout.fnmatch_lines(["*_ SHOULD hooks.*", "SHOULD failed: torch on cpu in float32", "*does NOT conform: *"])
    assert json.loads((pytester.path / "report.json").read_text())["strict"] is True


def test_the_ini_file_can_turn_strict_on_and_the_command_line_off(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngradconform_strict = true")
    assert judge(target="torch", checks=("hooks.*",)).ret == pytest.ExitCode.TESTS_FAILED
    assert judge("--no-gradconform-strict", target="torch", checks=("hooks.*",)).ret == pytest.ExitCode.OK


def test_the_environment_can_turn_strict_on(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCONFORM_STRICT", "1")
    assert judge(target="torch", checks=("hooks.*",)).ret == pytest.ExitCode.TESTS_FAILED
    monkeypatch.setenv("GRADCONFORM_STRICT", "perhaps")
    assert judge().ret == pytest.ExitCode.USAGE_ERROR
