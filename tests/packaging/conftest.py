"""New virtual environments with this one's dependencies, but without this checkout or its installation."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What a checkout has and no release: what .gitignore names, and git itself.
_OWN = (".git", *(line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()))


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and an empty folder in which its commands run."""

    scripts: Path
    empty: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment; its output, stderr with it, is in ``stdout``."""
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "COV"))
        }
        return subprocess.run(
            [str(self.scripts / command[0]), *command[1:]],
            cwd=self.empty,
            env=variables,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def install(self, *arguments: str) -> None:
        """Install with pip, without dependencies, which the outer environment has."""
        done = self.run("python", "-m", "pip", "install", "--quiet", "--no-deps", *arguments)
        assert done.returncode == 0, done.stdout


def new_environment(folder: Path) -> Environment:
    """Create an environment whose site-packages link to this one's, except gradconform."""
    venv.create(folder / "venv", with_pip=True)
    links = folder / "dependencies"
    links.mkdir()
    # If a .pth file adds another environment to this one, both are on the path; the first has precedence.
    sites = [Path(entry) for entry in sys.path if Path(entry).name in {"site-packages", "dist-packages"}]
    for entry in (one for site in sites for one in site.iterdir()):
        ours = entry.name.startswith(("gradconform", "__editable__", "pip", "setuptools", "__pycache__"))
        if not ours and entry.suffix != ".pth" and not (links / entry.name).is_symlink():
            (links / entry.name).symlink_to(entry)
    scripts = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    site = next((folder / "venv").rglob("site-packages"))
    (site / "dependencies.pth").write_text(f"{links}\n", encoding="utf-8")
    (folder / "empty").mkdir()
    return Environment(scripts, folder / "empty")


def copy_of_the_checkout(folder: Path) -> Path:
    """Copy the repository's files: a build creates files, and uses those of an earlier build."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*_OWN))
    return folder


@dataclass(frozen=True)
class Release:
    """The uploaded files and their sources; the wheel is built from the sdist."""

    source: Path
    sdist: Path
    wheel: Path


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    if not os.environ.get("CI"):  # there the group `dev` is installed, and a skip would be a test that is lost
        pytest.importorskip("build", reason="build is not installed; `pip install --group dev` brings it")
    folder = tmp_path_factory.mktemp("release")
    source = copy_of_the_checkout(folder / "source")
    command = [
        sys.executable,
        "-m",
        "build",
        "--outdir",
        str(folder / "dist"),
        str(copy_of_the_checkout(folder / "built")),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return Release(source, sdist, wheel)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_of_the_checkout(folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True)
    return next(folder.glob("gradconform-*.whl"))


@pytest.fixture(scope="module")
def from_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = new_environment(tmp_path_factory.mktemp("from_wheel"))
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="module")
def from_editable(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("from_editable")
    environment = new_environment(folder)
    environment.install("--editable", str(copy_of_the_checkout(folder / "source")))
    return environment
