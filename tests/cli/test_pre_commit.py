"""The pre-commit hook in a real repository: pre-commit clones the kit, and git commits only what conforms."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOOKS = ".pre-commit-hooks.yaml"
RIGHT = """
from gradconform.reference.split import stage_backward, stage_backward_input, stage_backward_weight
"""
WRONG = f"""{RIGHT}
def stage_backward(*arguments, **options):
    return None
"""


class Repository:
    """A repository with the package ``mypackage``, whose commits the hook checks."""

    def __init__(self, folder: Path) -> None:
        """Create the repository, and one with the kit's hook as a release has it."""
        self.folder, self.kit = folder / "mine", folder / "kit"
        names = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "PRE_COMMIT"))}
        scripts = str(Path(sys.executable).parent)
        self.environment = names | {
            "HOME": str(folder), "PRE_COMMIT_HOME": str(folder / "cache"),
            "PATH": f"{scripts}{os.pathsep}{names['PATH']}",
            "GIT_CONFIG_NOSYSTEM": "1", "GRADCONFORM_WAIT_SECONDS": "600",
        }  # fmt: skip
        for made in (self.kit, self.folder):
            made.mkdir()
            self.git("init", "-q", "-b", "main", folder=made)
            self.git("config", "user.email", "ada@example.org", folder=made)
            self.git("config", "user.name", "Ada", folder=made)
        shutil.copy(Path(__file__).parents[2] / HOOKS, self.kit)
        self.git("add", ".", folder=self.kit)
        self.git("commit", "-q", "-m", "a release", folder=self.kit)
        self.git("tag", "v1.0.0", folder=self.kit)
        (self.folder / ".gitignore").write_text("__pycache__/\n", encoding="utf-8")
        (self.folder / "mypackage").mkdir()
        (self.folder / "mypackage" / "__init__.py").touch()

    def git(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run git in the repository, or in another ``folder``; standard error is in ``stdout``."""
        return subprocess.run(
            ["git", *words], cwd=folder or self.folder, env=self.environment, check=False, text=True,  # noqa: S607 (as others)
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def commit(self, path: str, text: str) -> tuple[int, list[str]]:
        """Write a file and commit it; return git's exit code and the lines that a person reads."""
        (self.folder / path).write_text(text, encoding="utf-8")
        self.git("add", ".")
        done = self.git("commit", "-q", "-m", f"change {path}")
        return done.returncode, done.stdout.splitlines()

    def use(self, arguments: str) -> None:
        """Install the hook with the line ``arguments``, as docs/my-ci.md shows it."""
        (self.folder / ".pre-commit-config.yaml").write_text(
            f"repos:\n  - repo: {self.kit}\n    rev: v1.0.0\n    hooks:\n"
            f"      - id: gradconform\n        {arguments}\n        files: ^(mypackage/|gradconform)\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "pre_commit", "install"]
        subprocess.run(command, cwd=self.folder, env=self.environment, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    pytest.importorskip("pre_commit", reason="pre-commit comes with --group dev")
    return Repository(tmp_path)


@pytest.mark.slow
def test_pre_commit_lets_a_right_target_pass_and_stops_a_wrong_one_with_a_short_report(repository: Repository) -> None:
    repository.use("args: [mypackage.backward]")
    code, lines = repository.commit("mypackage/backward.py", RIGHT)
    assert (code, lines[1:]) == (0, [f"gradconform{'Passed':.>68}"]), lines
    assert lines[0] == f"[INFO] Initializing environment for {repository.kit}."

    code, lines = repository.commit("mypackage/backward.py", WRONG)
    assert code == 1
    assert not any("Initializing" in line for line in lines)  # pre-commit has the hook now
    assert lines[:4] == [f"gradconform{'Failed':.>68}", "- hook id: gradconform", "- exit code: 1", ""]
    shown = "\n".join(lines)
    assert "B raised TypeError: stage_backward returned NoneType" in shown
    assert "\nreproduce [1]: gradconform replay grad_tuple." in shown
    assert "mypackage.backward does NOT conform: " in shown
    assert len(lines) <= 16

    repository.git("reset", "-q", "--hard")
    code, lines = repository.commit("README.md", "no code\n")
    assert (code, lines) == (0, [f"gradconform{'(no files to check)Skipped':.>68}"])


@pytest.mark.slow
def test_the_hook_takes_its_target_from_the_settings_and_runs_when_they_change(repository: Repository) -> None:
    repository.use("")
    settings = 'target = "mypackage.backward"\n'
    (repository.folder / "mypackage" / "backward.py").write_text(RIGHT, encoding="utf-8")
    assert repository.commit("gradconform.toml", settings)[0] == 0
    code, lines = repository.commit("gradconform.toml", settings.replace("backward", "forward"))
    assert code == 1
    assert "- exit code: 2" in lines
    assert any("mypackage.forward" in line for line in lines)
