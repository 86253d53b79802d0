"""docs/torch-versions.md is what its command writes, and the scripts of torch_releases show what their record says.

benchmarks/torch_versions.json records what failed on each release; a script that shows its defect there explains it.
"""

from __future__ import annotations

import importlib
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


def minor(release: str) -> str:
    """Return a release without its last number: 2.6.0 as 2.6."""
    return release.rpartition(".")[0]


def recorded(script: Path) -> dict[str, Any]:
    """Return how a script ended on the release of torch that is installed."""
    (release,) = (one for one in FOUND["scripts"] if minor(one) == RELEASE)
    ended: dict[str, Any] = FOUND["scripts"][release][script.stem]
    return ended


def test_the_page_matches_the_output_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    command = importlib.import_module("torch_versions")
    written = (ROOT / "docs" / "torch-versions.md").read_text(encoding="utf-8")
    found = command.Found.read(command.FOUND)
    again = command.page(found, command.RELEASES, command.COMMANDS)
    assert written == again, "write it again: python benchmarks/torch_versions.py --write docs/torch-versions.md"
    assert [minor(one) for one in command.RELEASES if one in found.pythons] == list(TESTED)


@pytest.mark.skipif(RELEASE not in TESTED, reason=f"nothing is recorded of torch {RELEASE}")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_ends_on_this_torch_as_recorded(script: Path) -> None:
    with torch.random.fork_rng(), pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    known = recorded(script)
    assert not known["raised"]
    assert ended.value.code == known["code"]


def explaining() -> dict[str, list[str]]:
    """Return the patterns over checks that each script explains, by its name."""
    found: dict[str, list[str]] = {}
    for table in TABLES:
        text = (Path(__file__).parent / table).read_text(encoding="utf-8")
        for script, globs in tomllib.loads(text)["scripts"].items():
            found.setdefault(Path(script).stem, []).extend(globs)
    return found


@pytest.mark.parametrize("release", FOUND["commands"])
def test_a_script_that_fails_on_a_release_explains_each_of_its_failed_checks(release: str) -> None:
    failed = FOUND["commands"][release]["contract"]["failed"]
    ended = FOUND["scripts"][release]
    globs = [glob for script, known in explaining().items() if ended[script]["code"] for glob in known]
    assert failed
    # The space was covered anew since: which of its rows a release fails has to be measured again.
    named_as_now = [check for check in failed if not check.startswith("space.")]
    assert [check for check in named_as_now if not any(fnmatchcase(check, glob) for glob in globs)] == []


def test_each_script_that_explains_checks_of_releases_exists() -> None:
    known = tomllib.loads((Path(__file__).parent / TABLES[-1]).read_text(encoding="utf-8"))
    assert sorted(set(known["scripts"]) - {script.name for script in SCRIPTS}) == []


@pytest.mark.parametrize("release", FOUND["commands"])
def test_unavailable_checks_of_a_release_are_all_reported_with_a_reason(release: str) -> None:
    for name, ended in FOUND["commands"][release].items():
        told = sum(int(reason.split()[0]) for reason in ended["why"])
        assert (name, ended["apart"]) == (name, told)
        unjudged = re.search(r"(\d+) checks? could not be judged", ended["line"])
        assert unjudged is None or f"; [1] {unjudged[1]} check" in ended["line"], name
