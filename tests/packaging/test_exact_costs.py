"""benchmarks/exact_costs.py: a cost that has risen by more than 3 % fails CI, and is named."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORD = "python benchmarks/exact_costs.py --write"


def module() -> Any:
    """Return benchmarks/exact_costs.py as a module."""
    spec = importlib.util.spec_from_file_location("exact_costs", ROOT / "benchmarks" / "exact_costs.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


COSTS = module()


@pytest.fixture
def recorded() -> dict[str, dict[str, float]]:
    """Return figures that are recorded for this Python and torch."""
    return {COSTS.release(): {"calls": 1000.0, "bytes": 4096}}


def test_a_figure_2_9_percent_above_the_recorded_one_passes(
    recorded: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert COSTS.check({"calls": 1029.0, "bytes": 4096}, recorded) == 0
    assert not capsys.readouterr().out


def test_a_figure_3_1_percent_above_the_recorded_one_fails_with_what_to_do(
    recorded: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert COSTS.check({"calls": 1031.0, "bytes": 4096}, recorded) == 1
    printed = capsys.readouterr().out
    assert "calls: recorded 1,000.0, now 1,031.0 (+3.1%; allowed +3%)" in printed
    assert RECORD in printed
    assert "bytes" not in printed


def test_a_fallen_figure_passes_and_is_to_be_recorded(
    recorded: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert COSTS.check({"calls": 900.0, "bytes": 4096}, recorded) == 0
    printed = capsys.readouterr().out
    assert "calls: recorded 1,000.0, now 900.0" in printed
    assert RECORD in printed


def test_what_is_not_recorded_fails(recorded: dict[str, dict[str, float]], capsys: pytest.CaptureFixture[str]) -> None:
    assert COSTS.check({"calls": 1000.0, "modules": 3}, recorded) == 1
    assert "modules: not recorded, now 3" in capsys.readouterr().out
    assert COSTS.check({"calls": 1000.0}, {"Python 3.1, torch 0.4": {"calls": 1000.0}}) == 1
    assert f"nothing is recorded for {COSTS.release()}" in capsys.readouterr().out


def test_the_recorded_file_has_every_figure_of_its_releases() -> None:
    recorded = json.loads(COSTS.RECORDED.read_text(encoding="utf-8"))
    names = {name: list(figures) for name, figures in recorded.items()}
    assert names
    assert len({tuple(one) for one in names.values()}) == 1
    assert all(value > 0 for figures in recorded.values() for value in figures.values())


def test_imported_modules_are_counted_in_a_new_process() -> None:
    found = COSTS.modules("`import gradconform`")
    assert found["modules of the kit, `import gradconform`"] < 5
    assert found["other modules, `import gradconform`"] < 200
