"""``--gradconform-stage STAGE``."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

#: See conftest.py.
IN_TWO = True

Judge = Callable[..., pytest.RunResult]

MODEL = """
from torch import nn

def block():
    return nn.Linear(3, 3)
"""


def test_a_stage_is_judged_instead_of_the_contract(
    judge: Judge, pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    pytester.makepyfile(model=MODEL)
    given = ("-v", "--gradconform-stage=model.py:block", "--gradconform-json=report.json", *processes)
    result = judge(*given, checks=("*.gradients",))
    result.stdout.fnmatch_lines_random(["*gradconform::stage.block.full.gradients[[]cpu-float32]*"])
    report = json.loads((pytester.path / "report.json").read_text())
    assert report["extra"][0].startswith("block: model.py:block, 12 parameters")
    assert report["summary"]["passed"] == 2


def test_the_ini_file_and_the_environment_can_set_the_option(
    judge: Judge, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(model=MODEL)
    monkeypatch.setenv("GRADCONFORM_STAGE", "model.py:block")
    judge(checks=("*.full.gradients",)).stdout.fnmatch_lines(["*block: model.py:block*"])
    monkeypatch.setenv("GRADCONFORM_STAGE", "model.py:other")
    pytester.makeini("[pytest]\ngradconform_stage = model.py:block")
    judge(checks=("*.full.gradients",)).stdout.fnmatch_lines(["*block: model.py:block*"])


def test_an_unknown_stage_is_refused(judge: Judge, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(model=MODEL)
    result = judge("--gradconform-stage=model.py:blok")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*model.py has no 'blok'; nearest names: block"])
