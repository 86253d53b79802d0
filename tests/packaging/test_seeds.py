"""docs/seeds.md: every check that it names exists, and none of torch's own tests of pipelines is left out."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from gradconform import contract
from gradconform.fixtures.schedules import RECORDED, recorded
from gradconform.fixtures.schedules.from_torch import NAMES
from gradconform.pipeline.cases import cases_of
from gradconform.pipeline.schedule_text.checks import checks_of
from gradconform.pipeline.stage_objects.checks import CHECKS
from gradconform.pipeline.training_step.composition import step_cases

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DATA: dict[str, Any] = tomllib.loads((ROOT / "benchmarks" / "seeds.toml").read_text(encoding="utf-8"))
#: Text in backticks that is no check: commands and options.
COMMAND = re.compile(r"gradconform |--")


def writer() -> Any:
    """Return benchmarks/seeds.py as a module."""
    spec = importlib.util.spec_from_file_location("seeds", ROOT / "benchmarks" / "seeds.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["seeds"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


SEEDS = writer()


@pytest.fixture(scope="module")
def known() -> list[str]:
    """Return the ids of all checks, the extra ones among them."""
    found = [*contract.checks_of(), *(case.id for case in cases_of(NAMES, ranks=2)), *(check.id for check in CHECKS)]
    found += [case.id for case in step_cases("standard")]
    return [*found, *(check.id for check in checks_of([recorded(name) for name in RECORDED]))]


def test_every_check_that_a_row_names_exists(known: list[str]) -> None:
    named = {
        one for row in SEEDS.rows(DATA) for one in re.findall(r"`([^`]+)`", row.explanation) if not COMMAND.match(one)
    }
    assert len(named) > 50
    assert [one for one in sorted(named) if not any(fnmatchcase(check, one) for check in known)] == []


def test_every_torch_test_of_every_release_has_exactly_one_row() -> None:
    counted = Counter((row.file, row.test) for row in SEEDS.rows(DATA))
    assert [name for name, count in counted.items() if count > 1] == []
    assert counted.keys() == SEEDS.named(DATA).keys()


def test_a_covered_test_names_a_check_or_command_and_an_uncovered_one_a_reason() -> None:
    for row in SEEDS.rows(DATA):
        assert "`" in row.explanation if row.covered else len(row.explanation.split()) > 5, row


def test_the_seeds_of_checks_are_covered_tests_of_torch() -> None:
    covered = {row.test for row in SEEDS.rows(DATA) if row.covered and row.file == "test_backward.py"}
    assert {check.seed for check in contract.checks_of().values() if check.seed} - {"devices"} <= covered


def test_the_page_matches_the_output_of_the_command() -> None:
    written = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
    assert written == SEEDS.page(DATA), f"write it anew: {SEEDS.COMMAND}"
