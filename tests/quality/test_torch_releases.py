"""docs/torch-versions.md tells of the torch that is here what the scripts of torch_releases show on it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from gradconform.torch_releases.tested import TESTED

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(Path(__file__).with_name("torch_releases").glob("*.py"))
RELEASE = ".".join(torch.__version__.split(".")[:2])
SHOWN = {"": 0, "×": 1}


def lines() -> list[str]:
    return (ROOT / "docs" / "torch-versions.md").read_text(encoding="utf-8").splitlines()


def columns() -> list[str]:
    return next([cell.strip() for cell in line.split("|")] for line in lines() if line.startswith("| defect |"))


def told(script: Path) -> str:
    row = next(line for line in lines() if f"/{script.parent.name}/{script.name})" in line)
    return row.split("|")[columns().index(RELEASE)].strip()


def test_the_releases_that_the_kit_was_tested_on_are_those_of_the_page() -> None:
    assert columns()[5:-1] == list(TESTED)


@pytest.mark.skipif(RELEASE not in TESTED, reason=f"the page was not written of torch {RELEASE}")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_shows_on_this_torch_what_the_page_says(script: Path) -> None:
    with torch.random.fork_rng(), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == SHOWN[told(script)]
