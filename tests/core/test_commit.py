"""The commit of a target's file, where git has it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gradconform.target.resolve import commit_of

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Run git in a new repository that hears no configuration but its own."""
    program = shutil.which("git")
    if program is None:
        pytest.skip("git is not installed")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    commit_of.cache_clear()

    def run(*words: str) -> str:
        own = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
        return subprocess.run(
            [program, "-C", str(tmp_path), *own, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    run("init", "-q")
    return run


def test_a_tracked_file_has_a_commit_and_changes_are_marked_dirty(git: Git, tmp_path: Path) -> None:
    file = tmp_path / "backward.py"
    file.write_text("one\n", encoding="utf-8")
    git("add", "backward.py")
    git("commit", "-q", "-m", "one")
    commit = git("rev-parse", "--short=12", "HEAD")
    assert commit_of(str(file)) == commit
    file.write_text("two\n", encoding="utf-8")
    commit_of.cache_clear()
    assert commit_of(str(file)) == f"{commit}-dirty"


def test_an_untracked_file_has_no_commit(git: Git, tmp_path: Path) -> None:
    assert git("status", "--porcelain") == ""
    file = tmp_path / "installed.py"
    file.write_text("", encoding="utf-8")
    assert [commit_of(str(file)), commit_of(str(tmp_path / "no" / "file.py")), commit_of(None)] == [None, None, None]
