"""docs/runtimes.md has a row for each training step, and its totals are those of the rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradconform.pipeline.training_step.composition import step_cases

PAGE = (Path(__file__).parents[2] / "docs" / "runtimes.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(step\.[\w.-]+)`: [^|]+ \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
TOTALS = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (\d+) \| [\d.]+ \|$", PAGE, re.MULTILINE)
SCRIPTS = re.findall(r"^\| (\d+) \| \[.+\]\(\S+\) \| ([\w-]+) \| (\d+) \|$", PAGE, re.MULTILINE)


def test_the_page_has_a_row_for_each_training_step() -> None:
    assert [check for check, _, _ in ROWS] == [case.id for case in step_cases("standard")]


@pytest.mark.parametrize(("runtime", "passed", "failed", "withheld"), TOTALS)
def test_the_rows_of_a_runtime_add_up_to_its_totals(runtime: str, passed: str, failed: str, withheld: str) -> None:
    assert int(passed) + int(failed) + int(withheld) == len(ROWS)
    if f"`{runtime}` passes every row, and no row names it." in PAGE:
        assert (int(passed), int(failed)) == (len(ROWS), 0)
        return
    named = [(row[1].split(", "), re.findall(r"([\w-]+) \[", row[2])) for row in ROWS]
    assert sum(runtime in of_row for of_row, _ in named) == int(passed)
    assert sum(runtime in of_row for _, of_row in named) == int(failed)


@pytest.mark.parametrize(("number", "runtime", "steps"), SCRIPTS)
def test_a_script_is_named_in_the_stated_number_of_rows(number: str, runtime: str, steps: str) -> None:
    cells = [cell for _, _, failed in ROWS for cell in failed.split(", ") if cell.startswith(f"{runtime} ")]
    assert sum(f"[{number}]" in cell for cell in cells) == int(steps) > 0
