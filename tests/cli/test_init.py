"""``gradconform init``: what it writes is run as it stands; the workflow in test_workflow.py."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform import exits
from gradconform.cli import init
from gradconform.version import KIT_VERSION

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


def pytest_in(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TEST]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_generated_files_run_unchanged_for_a_right_implementation(
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


def test_the_generated_test_fails_for_a_wrong_implementation(command: Command, repository: Callable[..., Path]) -> None:
    folder = repository(WRONG)
    assert command("init", "mypackage.backward").code == exits.EXIT_CONFORMS
    tested = pytest_in(folder)
    assert tested.returncode == pytest.ExitCode.TESTS_FAILED, tested.stdout
    assert "mypackage.backward does NOT conform" in tested.stdout


def test_the_workflow_judges_the_target_with_this_kit(command: Command, repository: Callable[..., Path]) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with --group dev")
    folder = repository()
    command("init", "mypackage/backward.py")
    read = yaml.safe_load((folder / WORKFLOW).read_text(encoding="utf-8"))
    expected = {"TARGET": "mypackage/backward.py", "TORCH": ">=2.6", "GRADCONFORM": f"gradconform=={KIT_VERSION}"}
    assert read["env"] == expected
    assert list(read["jobs"]) == ["stage-backward"]
    (install,) = (step["run"] for step in read["jobs"]["stage-backward"]["steps"] if step.get("name") == "Install")
    assert [line.partition(" #")[0] for line in install.splitlines()] == [
        'python -m pip install --index-url https://download.pytorch.org/whl/cpu "torch$TORCH"',
        "python -m pip install -r requirements.txt",
        'python -m pip install "$GRADCONFORM"',
    ]


def test_each_shard_is_a_job_and_zero_shards_are_refused(command: Command, repository: Callable[..., Path]) -> None:
    folder = repository()
    refused = command("init", "--shards", "0")
    assert (refused.code, list((folder / "tests").glob("*"))) == (exits.EXIT_USAGE, [])
    assert "--shards" in refused.err
    command("init", "--shards", "3")
    workflow = (folder / WORKFLOW).read_text(encoding="utf-8")
    assert "        shard: [1, 2, 3]\n" in workflow
    assert '--shard "$SHARD/3"' in workflow


def test_init_never_overwrites_existing_files(command: Command, repository: Callable[..., Path]) -> None:
    folder = repository()
    (folder / WAIVERS).write_text("# mine\n", encoding="utf-8")
    assert f"kept  {WAIVERS}: it already exists\n" in command("init", "autograd").out
    before = {path: (folder / path).read_text(encoding="utf-8") for path in init.FILES}
    assert before[WAIVERS] == "# mine\n"
    again = command("init", "torch")
    assert again.code == exits.EXIT_CONFORMS
    assert again.out.splitlines() == [f"kept  {path}: it already exists" for path in init.FILES]
    assert {path: (folder / path).read_text(encoding="utf-8") for path in init.FILES} == before


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ((), "no file here defines stage_backward; name the target"),
        (("a.py", "b.py"), "several files here define stage_backward: a.py, b.py; name the target"),
    ],
)
def test_without_a_target_exactly_one_file_must_define_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in files:
        (tmp_path / name).write_text(RIGHT, encoding="utf-8")
    done = command("init")
    assert done.code == exits.EXIT_USAGE
    assert told in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)


def test_an_unknown_target_is_refused_and_nothing_is_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("init", "torhc")
    assert done.code == exits.EXIT_USAGE
    assert "target 'torhc' is not a registered name" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created_gives_4(command: Command, repository: Callable[..., Path]) -> None:
    (repository() / "tests").write_text("a file", encoding="utf-8")
    done = command("init", "autograd")
    assert done.code == exits.EXIT_ENVIRONMENT
    assert "tests: File exists" in done.err


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("backward.py", "backward.py"),
        ("kernels/backward.py", "kernels/backward.py"),
        ("mypackage/deep/backward.py", "mypackage.deep.backward"),
        ("src/mypackage/deep/__init__.py", "mypackage.deep"),
    ],
)
def test_a_file_in_a_package_is_named_by_its_import_path(tmp_path: Path, path: str, named: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    for folder in (tmp_path / path).parents:
        if "mypackage" in folder.relative_to(tmp_path).parts if folder.is_relative_to(tmp_path) else ():
            (folder / "__init__.py").touch()
    (tmp_path / path).write_text(RIGHT, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "mine.py").write_text(RIGHT, encoding="utf-8")
    assert init.only_target(tmp_path) == named


def test_a_kit_installed_from_a_commit_is_required_at_that_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = '{"url": "https://example.org/kit", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}}'

    class Installed:
        def read_text(self, _: str) -> str:
            return origin

    monkeypatch.setattr(init.importlib.metadata, "distribution", lambda _: Installed())
    assert init.kit_requirement() == "gradconform @ git+https://example.org/kit@0123abc"
    assert not init.installed_from_disk()


def test_the_pre_commit_hook_runs_the_target_of_its_arguments(
    command: Command, repository: Callable[..., Path]
) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with --group dev")
    (hook,) = yaml.safe_load((Path(__file__).parents[2] / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (hook["id"], hook["language"], hook["pass_filenames"]) == ("gradconform", "system", False)
    program, *words = hook["entry"].split()
    assert program == "gradconform"
    repository(WRONG)
    done = command(*words, "mypackage.backward", "--checks", "full.gradients.mlp")
    assert done.code == exits.EXIT_DOES_NOT
    assert len(done.out.splitlines()) <= 40


@pytest.mark.parametrize("kind", init.STARTERS)
def test_a_first_file_says_what_to_change_and_how_to_run_it(
    kind: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    starter = init.STARTERS[kind]
    done = command("init", "--new", kind)
    assert (done.code, done.err) == (exits.EXIT_CONFORMS, "")
    assert done.out.splitlines() == [
        f"wrote {starter.file}", f"try it: {starter.command}", "then change what its comments say",
    ]  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == [starter.file]
    text = (tmp_path / starter.file).read_text(encoding="utf-8")
    compile(text, starter.file, "exec")
    assert f"Run it: {starter.command}" in text
    assert len(re.findall(r"(?i)\bchange: ", text)) >= 2
    assert max(map(len, text.splitlines())) <= 120
    assert command("init", "--new", kind).out == f"kept  {starter.file}: it already exists\n"


def test_a_first_file_takes_no_target_and_no_shards(command: Command, tmp_path: Path) -> None:
    for words in (("backward.py",), ("--shards", "2")):
        assert "--new writes one file; omit TARGET and --shards" in command("init", "--new", "adapter", *words).err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", init.STARTERS)
def test_the_command_of_a_first_file_succeeds(kind: str, tmp_path: Path) -> None:
    words = init.STARTERS[kind].command.split()
    for arguments in (["init", "--new", kind], words[1:]):
        whole = [sys.executable, "-m", "gradconform", *arguments]
        done = subprocess.run(whole, cwd=tmp_path, capture_output=True, text=True, check=False)
        incomplete = {exits.EXIT_INCOMPLETE} if "--checks" in arguments else set()
        assert done.returncode in {exits.EXIT_CONFORMS, *incomplete}, done.stdout + done.stderr
    assert "failed" not in done.stdout.splitlines()[-1].replace("none failed", "")
