"""Each test that is offered fails on the version that has the defect, for its reason, and passes with what is right."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradconform.bench import upstream
from gradconform.bench.upstream import Offer, offers

OFFERS = offers()
PROJECTS = sorted({offer.project for offer in OFFERS.values()})
#: What ends with its process: groups of processes of other sizes than the next one's, and the name of a backend.
ALONE = {"deepspeed/clipped-by-norm-of-first-stage", "torch/python-backend-error-ends-process"}
SLOW = {"deepspeed", "torch"}
EACH = pytest.mark.parametrize(
    "project", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in PROJECTS]
)


def installed(project: str) -> str:
    """Return the version of a project that is here, without what it says of its build; skip where there is none."""
    try:
        return importlib.metadata.version(project).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{project} is not installed: CONTRIBUTING.md says how")


def ended(project: str, mode: str, some: Sequence[Offer]) -> dict[str, Any]:
    """Run tests as ``run_offered.py`` does; return how each ended by its offer's name, None where it passed."""
    folder = Path(upstream.__file__).parent / project
    apart = [[one] for one in some if one.name in ALONE]
    found: dict[str, Any] = {}
    for group in [[one for one in some if one.name not in ALONE], *apart]:
        paths = [str(folder / f"test_{one.stem}.py") for one in group]
        command = [sys.executable, str(Path(__file__).with_name("run_offered.py")), project, mode, *paths]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        for one, ends in zip(group, json.loads(done.stdout.splitlines()[-1]), strict=True):
            assert len(ends) == 1, (one.name, ends)  # one test, and nothing wrong around it
            found[one.name] = ends[0]
    return found


@EACH
def test_each_test_fails_on_the_defective_version_as_its_record_states(project: str) -> None:
    here = installed(project)
    some = [one for one in OFFERS.values() if (one.project, one.version) == (project, here)]
    if not some:
        pytest.skip(f"no offer tells of {project} {here}; run the tests to see what was mended")
    for name, end in ended(project, "as-it-is", some).items():
        assert end is not None, f"{name} passes"
        kind, _, said = OFFERS[name].fails.partition(": ")
        assert end["type"] == kind, (name, end)
        assert said in end["said"], (name, end)
        assert end["lines"], (name, end)  # raised by a line of the test, not by importing it


@EACH
def test_each_test_passes_with_the_right_code_in_place(project: str) -> None:
    here = installed(project)
    some = [one for one in OFFERS.values() if one.project == project]
    if here not in {one.version for one in some if not one.name.startswith("torch/edge-")}:
        pytest.skip(f"what is right was put in the place of what another version than {project} {here} has")
    wrong = {name: end for name, end in ended(project, "right", some).items() if end is not None}
    assert wrong == {}
