"""``--gradconform TARGET``, its ini twin and its environment variable."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradconform.plugins.pytest.option_names import OPTIONS

Judge = Callable[..., pytest.RunResult]
QUICK = ("--gradconform-profile=quick", "--gradconform-checks=full.gradients.mlp")


def test_the_ini_file_can_name_the_target(pytester: pytest.Pytester, processes: tuple[str, ...]) -> None:
    pytester.makeini("[pytest]\ngradconform_target = reference-split")
    pytester.runpytest(*QUICK, *processes).assert_outcomes(passed=1)


def test_the_environment_can_name_the_target(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCONFORM_TARGET", "reference-split")
    pytester.runpytest(*QUICK).assert_outcomes(passed=1)


def test_the_command_line_overrides_the_ini_file_which_overrides_the_environment(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_TARGET", "torch")
    pytester.makeini("[pytest]\ngradconform_target = autograd")
    pytester.runpytest(*QUICK).stdout.fnmatch_lines(["gradconform * judges autograd*"])
    judge(target="reference-split").stdout.fnmatch_lines(["gradconform * judges reference-split*"])


def test_a_file_in_the_ini_file_is_relative_to_that_file(
    pytester: pytest.Pytester, double: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini(f"[pytest]\ngradconform_target = {double}")
    monkeypatch.chdir(pytester.mkdir("below"))
    pytester.runpytest(*QUICK).assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("trch", "*target 'trch' is not a registered name*nearest registered names: torch*"),
        ("doubel.py", "*the file 'doubel.py' does not exist; nearest files: double.py*"),
        ("double.py:backward", "*has no 'backward'; nearest names: stage_backward*"),
    ],
)
@pytest.mark.usefixtures("double")
def test_an_unknown_target_is_refused_before_collection(
    pytester: pytest.Pytester, processes: tuple[str, ...], target: str, told: str
) -> None:
    pytester.makepyfile(test_own="raise RuntimeError('collected')")
    result = pytester.runpytest("--gradconform", target, *QUICK, *processes)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])
    result.stdout.no_fnmatch_line("*collected*")


def test_the_help_of_every_option_has_its_default_ini_name_and_variable(pytester: pytest.Pytester) -> None:
    told = " ".join(pytester.runpytest("--help").stdout.str().split())
    for option in OPTIONS:
        assert f"ini: {option.ini}; environment: {option.variable})" in told
        assert (
            option.option.kind == "switch"
            or f"{option.flag} {option.option.metavar}" in told
            or f"{option.flag}={option.option.metavar}" in told
        )
