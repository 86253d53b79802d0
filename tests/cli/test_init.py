"""``gradconform init``: what it writes is run as it stands, by pytest and, step for step, by a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradconform
from gradconform import exits
from gradconform.cli import init

Command = Callable[..., Any]

TEST, WAIVERS, WORKFLOW = init.FILES

#: A right implementation in a package, and one whose gradients are wrong.
RIGHT = """
from gradconform.reference import split
from gradconform.reference.split import stage_backward_input, stage_backward_weight

def stage_backward(*arguments, **options):
    return split.stage_backward(*arguments, **options)
"""
WRONG = RIGHT.replace("return split.stage_backward(*arguments, **options)", "return None")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A folder with a package ``mypackage``, and requirements that are met."""
    monkeypatch.chdir(tmp_path)

    def make(source: str = RIGHT) -> Path:
        (tmp_path / "mypackage").mkdir()
        (tmp_path / "mypackage" / "__init__.py").touch()
        (tmp_path / "mypackage" / "backward.py").write_text(source, encoding="utf-8")
        (tmp_path / "requirements.txt").write_text("packaging\n", encoding="utf-8")
        return tmp_path

    return make


def variables(workflow: str) -> dict[str, str]:
    """Return what a workflow puts into the environment of its steps."""
    found = re.search(r"^env:\n((?:  .*\n)+)", workflow, re.MULTILINE)
    assert found is not None
    return dict(re.findall(r'^  (\w+): "(.*)"', found[1], re.MULTILINE))


def shell_steps(workflow: str) -> dict[str, str]:
    """Return the shell of each step by its name, from the form in which the template writes it."""
    steps = workflow.partition("    steps:\n")[2].split("      - ")[1:]
    found = {}
    for step in steps:
        run = re.search(r"^        run: (?:\|\n((?:          .*\n)+)|(.*)\n)", step, re.MULTILINE)
        if run is not None:
            found[step.partition("name: ")[2].partition("\n")[0]] = textwrap.dedent(run[1] or run[2])
    return found


def as_on_github(script: str, folder: Path, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run one step as GitHub does; pip only says what it would install, and is offline."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    offline = {"PIP_DRY_RUN": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(
        ["bash", "-e", "-c", script],  # noqa: S607 (the one that is on the path, as there)
        cwd=folder,
        env={**os.environ, **given, **offline, "PATH": path, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")},
        capture_output=True,
        text=True,
        check=False,
    )


def pytest_in(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_what_it_writes_for_a_right_implementation_runs_as_it_stands(
    command: Command, repository: Callable[..., Path]
) -> None:
    folder = repository()
    done = command("init")
    assert (done.code, done.err) == (exits.EXIT_CONFORMS, "")
    assert done.out.splitlines()[:5] == [
        *(f"wrote {path}" for path in init.FILES), "",
        f"target mypackage.backward; try it: python -m pytest {TEST}",
    ]  # fmt: skip

    tested = pytest_in(folder)
    assert tested.returncode == 0, tested.stdout
    assert re.search(r"\b1\d\d passed\b", tested.stdout), "profile quick has more than a hundred checks"

    workflow = (folder / WORKFLOW).read_text(encoding="utf-8")
    steps = shell_steps(workflow)
    assert list(steps) == ["Install", "Judge", "Summary"]
    for script in steps.values():
        run = as_on_github(script, folder, variables(workflow))
        assert run.returncode == 0, run.stdout + run.stderr
    assert "mypackage.backward" in (folder / "summary.md").read_text(encoding="utf-8")
    assert gradconform.read_report(folder / "gradconform.json").conforms


def test_the_test_it_writes_fails_for_a_wrong_implementation(command: Command, repository: Callable[..., Path]) -> None:
    folder = repository(WRONG)
    assert command("init", "mypackage.backward").code == exits.EXIT_CONFORMS
    tested = pytest_in(folder)
    assert tested.returncode == pytest.ExitCode.TESTS_FAILED, tested.stdout
    assert "mypackage.backward does NOT conform" in tested.stdout


def test_the_workflow_is_the_yaml_that_its_steps_are_read_from(
    command: Command, repository: Callable[..., Path]
) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with --group dev")
    folder = repository()
    command("init", "mypackage/backward.py")
    text = (folder / WORKFLOW).read_text(encoding="utf-8")
    read = yaml.safe_load(text)
    steps = read["jobs"]["stage-backward"]["steps"]
    assert {step["name"]: step["run"] for step in steps if "run" in step} == shell_steps(text)
    assert read["env"] == variables(text) == {"TARGET": "mypackage/backward.py", "GRADCONFORM": "gradconform==1.0.0"}


def test_what_is_there_is_never_overwritten(command: Command, repository: Callable[..., Path]) -> None:
    folder = repository()
    (folder / WAIVERS).write_text("# mine\n", encoding="utf-8")
    assert f"kept  {WAIVERS}: it is there already\n" in command("init", "autograd").out
    before = {path: (folder / path).read_text(encoding="utf-8") for path in init.FILES}
    assert before[WAIVERS] == "# mine\n"
    again = command("init", "torch")
    assert again.code == exits.EXIT_CONFORMS
    assert again.out.splitlines() == [f"kept  {path}: it is there already" for path in init.FILES]
    assert {path: (folder / path).read_text(encoding="utf-8") for path in init.FILES} == before


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((), "no file here defines stage_backward; name the target"),
        (("a.py", "b.py"), "several files here define stage_backward: a.py, b.py; name the target"),
    ],
)
def test_without_a_target_there_has_to_be_one_file_that_defines_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in files:
        (tmp_path / name).write_text(RIGHT, encoding="utf-8")
    done = command("init")
    assert done.code == exits.EXIT_USAGE
    assert told in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_a_target_that_is_none_is_refused_and_nothing_is_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("init", "torhc")
    assert done.code == exits.EXIT_USAGE
    assert "target 'torhc' is no registered name" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_gives_4(command: Command, repository: Callable[..., Path]) -> None:
    (repository() / "tests").write_text("a file", encoding="utf-8")
    done = command("init", "autograd")
    assert done.code == exits.EXIT_ENVIRONMENT
    assert "tests: cannot be written: " in done.err


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("backward.py", "backward.py"),
        ("kernels/backward.py", "kernels/backward.py"),
        ("mypackage/deep/backward.py", "mypackage.deep.backward"),
        ("src/mypackage/deep/__init__.py", "mypackage.deep"),
    ],
)
def test_a_file_of_a_package_is_named_as_python_imports_it(tmp_path: Path, path: str, named: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    for folder in (tmp_path / path).parents:
        if "mypackage" in folder.relative_to(tmp_path).parts if folder.is_relative_to(tmp_path) else ():
            (folder / "__init__.py").touch()
    (tmp_path / path).write_text(RIGHT, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "mine.py").write_text(RIGHT, encoding="utf-8")
    assert init.only_target(tmp_path) == named


def test_a_kit_that_came_from_a_commit_is_installed_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = '{"url": "https://example.org/kit", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}}'

    class Installed:
        def read_text(self, _: str) -> str:
            return origin

    monkeypatch.setattr(init.importlib.metadata, "distribution", lambda _: Installed())
    assert init.kit_requirement() == "gradconform @ git+https://example.org/kit@0123abc"
    assert not init.installed_from_disk()
