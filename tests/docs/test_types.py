"""The Python of README.md and the pages passes ``mypy --strict`` and pyright, beside the kit as it is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .blocks import ROOT, Block, blocks, pages

pytestmark = pytest.mark.slow

#: The files of a page whose blocks import one another.
NAMES = {
    "write-an-adapter.md": ["refusing.py", "engine.py", "my_adapter.py", "zero_bubble.py", "split_adapter.py", "use.py"]
}


def typed_blocks(page: Path) -> list[tuple[str, Block]]:
    """Return the Python blocks of a page that stand by themselves, each with the name of its file."""
    python = [one for one in blocks(page) if one.language == "python" and one.note("last") is None]
    names = NAMES.get(page.name, [f"block_{place}.py" for place in range(len(python))])
    return [pair for pair in zip(names, python, strict=True) if pair[1].note("untyped:") is None]


PAGES = [page for page in pages() if typed_blocks(page)]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package as a wheel lays it out, and the blocks of each page in a folder of their own."""
    folder = tmp_path_factory.mktemp("typed")
    ignored = shutil.ignore_patterns("__pycache__", "*.html", "*.js")
    shutil.copytree(ROOT / "conformance", folder / "gradconform", ignore=ignored)
    for name in ("fixtures", "plugins", "reference", "bench"):
        shutil.copytree(ROOT / name, folder / "gradconform" / name, ignore=ignored)
    for page in PAGES:
        (folder / page.stem).mkdir()
        for name, block in typed_blocks(page):
            (folder / page.stem / name).write_text(block.text, encoding="utf-8")
    return folder


def run(folder: Path, *words: str) -> str:
    """Run a command of Python in a folder, and return what it prints."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_passes_mypy(page: Path, checked: Path) -> None:
    pytest.importorskip("mypy")
    words = ("mypy", "--strict", "--cache-dir", str(checked / "cache"), "--exclude-gitignore", ".")
    settings = f"[mypy]\nmypy_path = {checked}\n[mypy-gradconform.*]\nfollow_imports = silent\n"
    (checked / page.stem / "mypy.ini").write_text(settings, encoding="utf-8")
    told = run(checked / page.stem, *words)
    assert told == ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_passes_pyright(page: Path, checked: Path) -> None:
    pytest.importorskip("basedpyright")
    settings = f'{{"typeCheckingMode": "standard", "extraPaths": ["{checked}"], "reportMissingImports": "error"}}'
    (checked / page.stem / "pyrightconfig.json").write_text(settings, encoding="utf-8")
    told = run(checked / page.stem, "basedpyright", "--pythonpath", sys.executable)
    assert told == ""
