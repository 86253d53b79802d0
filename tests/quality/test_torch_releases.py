"""docs/torch-versions.md tells of the torch that is here what the scripts of torch_releases show on it.

What the contract found on each release, which benchmarks/torch_versions.json keeps, is explained by a script that shows
its defect there.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform.torch_releases.tested import TESTED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
FOUND: dict[str, Any] = json.loads((ROOT / "benchmarks" / "torch_versions.json").read_text(encoding="utf-8"))
TABLES = ("torch_2_13/explained.toml", "torch_2_15/explained.toml", "torch_releases/checks.toml")
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


def explaining() -> dict[str, list[str]]:
    """Return the patterns over checks that each script explains, by its name."""
    found: dict[str, list[str]] = {}
    for table in TABLES:
        text = (Path(__file__).parent / table).read_text(encoding="utf-8")
        for script, globs in tomllib.loads(text)["scripts"].items():
            found.setdefault(Path(script).stem, []).extend(globs)
    return found


@pytest.mark.parametrize("release", FOUND["commands"])
def test_each_check_that_fails_on_a_release_is_explained_by_a_script_that_ends_in_an_error_there(release: str) -> None:
    failed = FOUND["commands"][release]["contract"]["failed"]
    ended = FOUND["scripts"][release]
    globs = [glob for script, known in explaining().items() if ended[script]["code"] for glob in known]
    assert failed
    # The space was covered anew since: which of its rows a release fails has to be measured again.
    named_as_now = [check for check in failed if not check.startswith("space.")]
    assert [check for check in named_as_now if not any(fnmatchcase(check, glob) for glob in globs)] == []


def test_each_script_of_releases_that_explains_checks_is_there() -> None:
    known = tomllib.loads((Path(__file__).parent / TABLES[-1]).read_text(encoding="utf-8"))
    assert sorted(set(known["scripts"]) - {script.name for script in SCRIPTS}) == []


@pytest.mark.parametrize("release", FOUND["commands"])
def test_what_is_unavailable_on_a_release_is_told_with_a_reason_for_all_of_it(release: str) -> None:
    for name, ended in FOUND["commands"][release].items():
        told = sum(int(reason.split()[0]) for reason in ended["why"])
        assert (name, ended["apart"]) == (name, told)
        unjudged = re.search(r"(\d+) checks? could not be judged", ended["line"])
        assert unjudged is None or f"; [1] {unjudged[1]} check" in ended["line"], name
