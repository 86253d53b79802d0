"""``--gradconform-device DEVICE``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Judge = Callable[..., pytest.RunResult]


def test_a_check_is_collected_once_per_device(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge("--gradconform-device=cpu", "--gradconform-device=cpu:0", "-v", *processes)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines_random(["*full.gradients.mlp[[]cpu-float32]*", "*full.gradients.mlp[[]cpu:0-float32]*"])


def test_the_ini_file_and_the_environment_can_set_the_option(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_DEVICE", "nowhere")
    assert judge().ret == pytest.ExitCode.USAGE_ERROR
    pytester.makeini("[pytest]\ngradconform_device = cpu:0")
    judge().stdout.fnmatch_lines(["*checks on cpu:0 (the CPU) float32*"])
    judge("--gradconform-device=cpu").stdout.fnmatch_lines(["*checks on cpu float32*"])


def test_an_unusable_device_is_refused_before_collection(judge: Judge, processes: tuple[str, ...]) -> None:
    result = judge("--gradconform-device=meta", *processes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*device 'meta' cannot be used: *usable here: cpu*"])


def test_a_device_on_the_command_line_is_judged_without_a_target_too(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--gradconform-device=nowhere")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*device 'nowhere' cannot be used*"])
