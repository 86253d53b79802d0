"""``--gradconform-seed N``."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from gradconform.plugins.pytest.option_names import OPTIONS
from gradconform.user_input.option_help import DEFAULT_SEED

Judge = Callable[..., pytest.RunResult]


def told(pytester: pytest.Pytester) -> list[str]:
    report = json.loads((pytester.path / "report.json").read_text())
    return [str(report["seed"]), report["results"][0]["message"]]


def test_the_default_seed_is_that_of_the_kit() -> None:
    assert next(one.option.default for one in OPTIONS if one.option.name == "seed") == DEFAULT_SEED


def test_another_seed_changes_the_run_and_is_reported(
    judge: Judge, pytester: pytest.Pytester, double: str, processes: tuple[str, ...]
) -> None:
    options = ("--gradconform-json=report.json", *processes)
    judge("--gradconform-json=report.json", target=double, checks=("full.gradients.mlp",))
    seed, message = told(pytester)
    assert seed == str(DEFAULT_SEED)
    judge("--gradconform-seed=7", *options, target=double, checks=("full.gradients.mlp",))
    assert told(pytester)[0] == "7"
    assert told(pytester)[1] != message


def test_the_ini_file_and_the_environment_can_set_the_option(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCONFORM_SEED", "8")
    judge().stdout.fnmatch_lines(["*seed 8"])
    pytester.makeini("[pytest]\ngradconform_seed = 9")
    judge().stdout.fnmatch_lines(["*seed 9"])


def test_a_seed_that_is_not_a_number_is_refused(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCONFORM_SEED", "often")
    result = judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*gradconform_seed: expected an integer from 0 to 4294967295, got 'often'"])
