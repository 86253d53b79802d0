"""Reports for the tests: one of a real run, and some made from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradconform
from gradconform import contract
from gradconform.devices.environment import environment
from gradconform.results import Report, Result

#: Some of these fail on torch 2.13.0, a SHOULD among them.
CHECKS = ("full.gradients.*", "split.gradients.[d-z]*", "hooks.*")
WAIVED, SHOULD, WITHHELD = "split.gradients.gru", "accumulate.in_place.full", "accumulate.stage.two-outputs"
#: A contract of a few checks, so that reports of a whole run are small: every fortieth, two that tests change, and one
#: SHOULD.
FEW = {
    check.id: check
    for number, check in enumerate(contract.checks_of().values())
    if check.id in {WAIVED, SHOULD, WITHHELD} or (number % 40 == 0 and check.level == "MUST")
}


@pytest.fixture(scope="session")
def _real() -> Report:
    return gradconform.check_stage_backward("torch", profile="quick", checks=CHECKS)


@pytest.fixture
def real(_real: Report) -> Report:
    """The report of a run of some checks on torch; each test may change its own."""
    return replace(_real, results=list(_real.results))


@pytest.fixture
def values(real: Report) -> dict[str, Any]:
    """The JSON values of the real report."""
    return real.to_dict()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contract_of: Callable[..., None]) -> Path:
    monkeypatch.chdir(tmp_path)
    contract_of(FEW.values())
    return tmp_path


@pytest.fixture
def whole(folder: Path) -> Report:
    """The report of a passed run of profile full, made by hand: a real run takes ten seconds."""
    target = folder / "backward.py"
    target.write_text("def stage_backward(): ...\n", encoding="utf-8")
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    results = [
        Result(
            check=check.id, level=check.level, device="cpu", dtype="float32", status="passed", error_ratio=0.0,
            requirement=check.requirement, bit_equal=True, core=check.core,
        )
        for check in FEW.values()
    ]  # fmt: skip
    return Report(
        profile="full",
        target={"text": "backward.py", "name": "mine", "version": "1.0", "file": str(target), "sha256": digest},
        environment=environment(),
        seed=20,
        manifest=len(FEW),
        planned=len(FEW),
        results=results,
    )
