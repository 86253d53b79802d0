"""docs/write-a-runtime.md: its blocks run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gradconform import exits
from gradconform.pipeline.training_step.composition import step_cases, unclaimed_values
from gradconform.pipeline.training_step.runtimes import ENTRY_POINTS

PAGE = Path(__file__).parents[2] / "docs" / "write-a-runtime.md"
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL))


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "my_runtime.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", *BLOCKS["sh"].split()]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=variables)


@pytest.mark.slow
def test_the_page_shows_the_output_of_its_commands(tmp_path: Path) -> None:
    done = run(tmp_path, BLOCKS["python"])
    assert BLOCKS["text"].strip() in done.stdout, done.stdout + done.stderr
    assert done.returncode == exits.EXIT_INCOMPLETE  # not all checks were selected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong"),
    [("                dist.all_reduce(grad)\n", ""), ("1 / (self.spec.replicas * self", "1 / (self")],
    ids=["not reduced", "not divided by the replicas"],
)
def test_a_wrong_runtime_fails(right: str, wrong: str, tmp_path: Path) -> None:
    code = BLOCKS["python"].replace(right, wrong)
    assert code != BLOCKS["python"]
    done = run(tmp_path, code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "step.ddp:" in done.stdout


def test_the_page_has_the_number_of_compositions_its_runtime_claims() -> None:
    made: dict[str, Any] = {}
    exec(BLOCKS["python"], made)  # noqa: S102 (the page is the project's own)
    claimed = [case for case in step_cases("standard") if not unclaimed_values(case, made["Runtime"].claims)]
    assert f"; {len(claimed)} of all are this runtime's" in PAGE.read_text(encoding="utf-8")


def test_the_page_names_the_entry_point_group_that_is_read() -> None:
    assert f'[project.entry-points."{ENTRY_POINTS}"]' in BLOCKS["toml"]
