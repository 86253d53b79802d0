"""A target that forks, or raises what a person's ctrl-C raises, does that to its check and not to pytest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

Judge = Callable[..., pytest.RunResult]

HOSTILE = Path(__file__).parents[1] / "runs" / "hostile.py"
CHECKS = ("full.gradients.mlp", "full.loss.mlp")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it is about processes as Unix has them")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("comes_back_twice", "forked, and its call came back in the child as well"),
        ("interrupts", "raised KeyboardInterrupt"),
        ("exits", "raised SystemExit"),
    ],
)
def test_a_hostile_target_fails_each_of_its_checks_once(
    judge: Judge, pytester: pytest.Pytester, processes: tuple[str, ...], name: str, told: str
) -> None:
    result = judge("--gradconform-json=report.json", *processes, target=f"{HOSTILE}:{name}", checks=CHECKS)
    assert (result.ret, result.parseoutcomes()) == (pytest.ExitCode.TESTS_FAILED, {"failed": len(CHECKS)})
    found = json.loads((pytester.path / "report.json").read_text(encoding="utf-8"))["results"]
    assert [(one["check"], one["status"], one["kind"]) for one in found] == [
        (check, "failed", "error") for check in CHECKS
    ]
    assert all(told in one["message"] for one in found)
