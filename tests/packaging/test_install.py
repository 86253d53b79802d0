"""The wheel and the editable install, each in a new environment without access to the checkout."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gradconform.files.kit_files import kit_sha256

if TYPE_CHECKING:
    from conftest import Environment

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["from_wheel", "from_editable"])
def installed(request: pytest.FixtureRequest) -> object:
    return request.getfixturevalue(request.param)


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"gradconform/py.typed", "gradconform/tolerances.toml"} <= set(names)
    assert [name for name in names if not name.startswith(("gradconform/", "gradconform-"))] == []


@pytest.mark.slow
def test_the_installed_kit_does_not_use_the_checkout(installed: Environment) -> None:
    code = "import gradconform, gradconform.fixtures as f, sys; print(gradconform.__file__, f.__file__, *sys.path)"
    done = installed.run("python", "-c", code)
    assert done.returncode == 0, done.stdout
    assert str(ROOT) not in done.stdout


def test_the_declared_dependencies_are_installed(installed: Environment) -> None:
    done = installed.run("python", "-m", "pip", "check")  # it speaks of other distributions as well
    assert [line for line in done.stdout.splitlines() if line.startswith("gradconform ")] == []


def test_the_zero_line_form_runs_in_an_empty_folder(installed: Environment) -> None:
    done = installed.run("python", "-m", "pytest", "--gradconform", "reference-split", "--gradconform-profile", "quick")
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout.splitlines()[-1]


def test_the_command_runs_in_an_empty_folder(installed: Environment) -> None:
    done = installed.run("gradconform", "run", "reference-split", "--profile", "quick")
    assert done.returncode == 0, done.stdout
    assert "conforms" in done.stdout


def test_the_installed_package_has_its_type_marker_and_data(installed: Environment) -> None:
    code = (
        "from importlib.resources import files as f; r = f('gradconform'); "
        "print(r.joinpath('py.typed').is_file(), r.joinpath('tolerances.toml').is_file())"
    )
    assert installed.run("python", "-c", code).stdout.split() == ["True", "True"]


def test_an_installed_kit_hashes_its_files_and_detects_a_changed_one(from_wheel: Environment) -> None:
    ask = (
        "from gradconform.files.kit_files import altered_since_installation as a, kit_sha256; print(kit_sha256(), a())"
    )
    digest, altered = from_wheel.run("python", "-c", ask).stdout.split(maxsplit=1)
    assert altered.strip() == "[]"
    assert digest == kit_sha256(), "installed from a wheel or from the checkout, the kit is the same"
    found = from_wheel.run("python", "-c", "import gradconform.contract.shard as s; print(s.__file__)").stdout.strip()
    source = Path(found).read_text(encoding="utf-8")
    try:
        Path(found).write_text(f"{source}# altered\n", encoding="utf-8")
        now, altered = from_wheel.run("python", "-c", ask).stdout.split(maxsplit=1)
        assert (now != digest, altered.strip()) == (True, "['gradconform/contract/shard.py']")
    finally:
        Path(found).write_text(source, encoding="utf-8")
