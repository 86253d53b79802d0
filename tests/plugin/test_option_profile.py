"""``--gradconform-profile PROFILE``."""

from __future__ import annotations

import pytest


def test_the_profile_decides_the_number_of_checks_of_the_manifest(
    pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    sizes = {}
    for profile in ("quick", "standard", "full"):
        options = ("--gradconform=autograd", f"--gradconform-profile={profile}", "--collect-only", "-q")
        lines = pytester.runpytest(*options).stdout.lines
        sizes[profile] = sum(line.startswith("gradconform::") for line in lines)
    assert 0 < sizes["quick"] < sizes["standard"] < sizes["full"]
    narrowed = ("--gradconform=autograd", "--gradconform-checks=full.gradients.mlp", "--gradconform-profile=full")
    result = pytester.runpytest(*narrowed, *processes)
    result.stdout.fnmatch_lines([f"1 of {sizes['full']} checks of contract 1.3, profile full, ran*"])


def test_the_ini_file_and_the_environment_can_set_the_option(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_PROFILE", "full")
    options = ("--gradconform=autograd", "--gradconform-checks=full.gradients.mlp")
    pytester.runpytest(*options).stdout.fnmatch_lines(["*, profile full, *"])
    pytester.makeini("[pytest]\ngradconform_profile = quick")
    pytester.runpytest(*options).stdout.fnmatch_lines(["*, profile quick, *"])


def test_an_unknown_profile_is_refused(pytester: pytest.Pytester, processes: tuple[str, ...]) -> None:
    result = pytester.runpytest("--gradconform=autograd", "--gradconform-profile=complete", *processes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*unknown profile 'complete'; expected one of quick, standard, full"])
