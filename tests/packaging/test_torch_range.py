"""Whichever torch a user has stays: neither the kit's own range nor a pin of CI's may take its place."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from gradconform.torch_releases.tested import TESTED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]


def pinned(name: str) -> set[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}


def pin(name: str, package: str) -> str:
    """Return the version that a file pins a package to."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(f"{package}=="))


def test_the_kit_asks_for_torch_from_2_6_on_without_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [one for one in project["dependencies"] if re.match(r"torch\b", one)] == ["torch>=2.6"]


def test_readmes_command_pins_cis_torch_in_a_file_of_its_own_that_can_be_left_out() -> None:
    # torch 2.6 asks for one version of sympy; another one in the constraints makes pip look for another torch.
    own = {"torch", "sympy", "mpmath", "networkx", "fsspec"}
    assert pinned("constraints.txt").isdisjoint(own)
    assert pinned("constraints-torch.txt") == own
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = next(line for line in readme.splitlines() if line.startswith("python3 -m venv"))
    assert re.findall(r"constraints\S*", command) == ["constraints.txt", "constraints-torch.txt"]
    assert f"installs torch {pin('constraints-torch.txt', 'torch')}, which CI tests" in " ".join(readme.split())


def test_the_newest_release_that_ci_runs_is_the_newest_that_the_kit_was_tested_with() -> None:
    lines = (ROOT / "requirements-newest.txt").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if "==" in line)
    name, release = line.split("==")
    assert (name, release.rpartition(".")[0]) == ("torch", TESTED[-1])
