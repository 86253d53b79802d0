"""The Python of README.md and the pages passes ``mypy --strict`` and pyright, beside the kit as it is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from .blocks import ROOT, Block, blocks, pages

pytestmark = pytest.mark.slow

#: The files of a page whose blocks import one another.
NAMES = {
    "my-sharded-stage.md": ["my_layers.py", "clipped.py", "mistaken.py", "of_my_layers.py"],
    "write-an-adapter.md": [
        "engine.py",
        "my_adapter.py",
        "zero_bubble.py",
        "split_adapter.py",
        "refusing.py",
        "use.py",
    ],
}


def typed_blocks(page: Path) -> list[tuple[str, Block]]:
    """Return the Python blocks of a page that stand by themselves, each with the name of its file."""
    python = [one for one in blocks(page) if one.language == "python" and one.note("last") is None]
    names = NAMES.get(page.name, [f"block_{place}.py" for place in range(len(python))])
    return [pair for pair in zip(names, python, strict=True) if pair[1].note("untyped:") is None]


PAGES = [page for page in pages() if typed_blocks(page)]


def package_of(page: Path) -> str:
    """Return the name of the folder that contains a page's blocks; mypy requires the name of a package."""
    return page.stem.replace("-", "_")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the package as a wheel lays it out, and the blocks of each page in a folder of their own."""
    folder = tmp_path_factory.mktemp("typed")
    ignored = shutil.ignore_patterns("__pycache__", "*.html", "*.js")
    shutil.copytree(ROOT / "conformance", folder / "gradconform", ignore=ignored)
    for name in ("fixtures", "plugins", "reference", "bench"):
        shutil.copytree(ROOT / name, folder / "gradconform" / name, ignore=ignored)
    for page in PAGES:
        (folder / package_of(page)).mkdir()
        for name, block in typed_blocks(page):
            (folder / package_of(page) / name).write_text(block.text, encoding="utf-8")
    return folder


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a type checker in a folder."""
    return subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False)


def by_page(done: subprocess.CompletedProcess[str], found: Iterable[tuple[str, int, str]]) -> dict[str, list[str]]:
    """Return the errors of a type checker, given as file, line and message, by the folder of their file."""
    errors: dict[str, list[str]] = {}
    for file, line, message in found:
        errors.setdefault(Path(file).parts[0], []).append(f"{file}:{line}: {message}")
    assert done.returncode == (1 if errors else 0), done.stdout + done.stderr
    return errors


@pytest.fixture(scope="module")
def mypy_errors(folder: Path) -> dict[str, list[str]]:
    """Check all pages in one process, each as a package; blocks that import one another find their own folder."""
    pytest.importorskip("mypy")
    bases = [str(folder), *(str(folder / package_of(Path(page))) for page in NAMES)]
    settings = f"[mypy]\nmypy_path = {':'.join(bases)}\n[mypy-gradconform.*]\nfollow_imports = silent\n"
    (folder / "mypy.ini").write_text(settings, encoding="utf-8")
    pages = [package_of(page) for page in PAGES]
    done = run(folder, "mypy", "--strict", "--explicit-package-bases", "--output", "json", "--no-incremental", *pages)
    read = [json.loads(line) for line in done.stdout.splitlines() if line]
    return by_page(done, ((one["file"], one["line"], one["message"]) for one in read))


@pytest.fixture(scope="module")
def pyright_errors(folder: Path) -> dict[str, list[str]]:
    """Check all pages in one process, each with its own folder as the root of imports."""
    pytest.importorskip("basedpyright")
    pages = [package_of(page) for page in PAGES]
    settings = {
        "typeCheckingMode": "standard",
        "reportMissingImports": "error",
        "include": pages,
        "executionEnvironments": [{"root": page, "extraPaths": [str(folder)]} for page in pages],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    done = run(folder, "basedpyright", "--outputjson", "--pythonpath", sys.executable)
    read = json.loads(done.stdout)
    assert read["summary"]["filesAnalyzed"] == sum(len(typed_blocks(page)) for page in PAGES)
    found = read["generalDiagnostics"]
    return by_page(
        done,
        (
            (str(Path(one["file"]).relative_to(folder)), one["range"]["start"]["line"] + 1, one["message"])
            for one in found
        ),
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_passes_mypy(page: Path, mypy_errors: dict[str, list[str]]) -> None:
    assert mypy_errors.get(package_of(page), []) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_passes_pyright(page: Path, pyright_errors: dict[str, list[str]]) -> None:
    assert pyright_errors.get(package_of(page), []) == []
