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


def test_the_kit_requires_torch_2_6_or_newer_without_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [one for one in project["dependencies"] if re.match(r"torch\b", one)] == ["torch>=2.6"]


def test_the_readme_command_pins_torch_in_a_separate_optional_file() -> None:
    # torch 2.6 asks for one version of sympy; another one in the constraints makes pip look for another torch.
    own = {"torch", "sympy", "mpmath", "networkx", "fsspec"}
    assert pinned("constraints.txt").isdisjoint(own)
    assert pinned("constraints-torch.txt") == own
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = next(line for line in readme.splitlines() if line.startswith("python3 -m venv"))
    assert re.findall(r"constraints\S*", command) == ["constraints.txt", "constraints-torch.txt"]
    assert f"installs torch {pin('constraints-torch.txt', 'torch')}, which CI tests" in " ".join(readme.split())


def test_the_newest_release_in_ci_is_the_newest_tested_release() -> None:
    lines = (ROOT / "requirements-newest.txt").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in lines if "==" in line)
    name, release = line.split("==")
    assert (name, release.rpartition(".")[0]) == ("torch", TESTED[-1])


def test_the_workflow_of_versions_has_each_python_and_system_that_the_limits_name() -> None:
    workflow = (ROOT / ".github" / "workflows" / "versions.yml").read_text(encoding="utf-8")
    lists = dict(re.findall(r"^        (os|python): \[(.*)\]$", workflow, re.MULTILINE))
    pythons = [one.strip(' "') for one in lists["python"].split(",")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert pythons[0] == project["requires-python"].removeprefix(">=")
    assert lists["os"].split(", ") == ["ubuntu-latest", "macos-latest", "windows-latest"]
    limits = " ".join((ROOT / "docs" / "limits.md").read_text(encoding="utf-8").split())
    assert f"runs Python {pythons[0]} to {pythons[-1]} on Linux, macOS and Windows" in limits
    declared = {one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)}
    assert declared < set(pythons)
    assert all(f"Python {one}" in limits for one in set(pythons) - declared), "untested ones are named"
