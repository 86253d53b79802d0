"""pyproject.toml against the folders: the list of packages is explicit, and this keeps it true."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
TOP = {
    "conformance": "gradconform",
    **{name: f"gradconform.{name}" for name in ("bench", "fixtures", "plugins", "reference")},
}


#: Tests in the style of other projects' suites, which no module imports: data, though they are Python.
OFFERED = "bench/upstream/*/test_*.py"


@pytest.fixture(scope="module")
def setuptools_table() -> dict[str, Any]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)["tool"]["setuptools"]
    return table


def folders() -> dict[str, str]:
    """Map the import name of every folder with an __init__.py to its path."""
    found: dict[str, str] = {}
    for top, import_name in TOP.items():
        for init in (ROOT / top).rglob("__init__.py"):
            below = init.parent.relative_to(ROOT / top).parts
            found[".".join((import_name, *below))] = "/".join((top, *below))
    return found


def test_the_package_list_names_every_folder_with_an_init(setuptools_table: dict[str, Any]) -> None:
    assert sorted(setuptools_table["packages"]) == sorted(folders())


def test_the_package_dir_maps_every_package_to_its_folder(setuptools_table: dict[str, Any]) -> None:
    directories = setuptools_table["package-dir"]
    assert directories == {import_name: top for top, import_name in TOP.items()}
    for package, folder in folders().items():
        root = max((one for one in directories if f"{package}.".startswith(f"{one}.")), key=len)
        below = package.removeprefix(root).replace(".", "/")
        assert f"{directories[root]}{below}" == folder


def test_every_folder_with_modules_has_an_init() -> None:
    modules = {module.parent for top in TOP for module in (ROOT / top).rglob("*.py") if not module.match(OFFERED)}
    assert {str(folder.relative_to(ROOT)) for folder in modules} == set(folders().values())


def test_every_file_that_is_not_a_module_is_package_data(setuptools_table: dict[str, Any]) -> None:
    data = {
        path.relative_to(ROOT).as_posix()
        for top in TOP
        for path in (ROOT / top).rglob("*")
        if path.is_file() and (path.suffix not in {".py", ".pyc"} or path.match(OFFERED))
    }
    named = {
        path.relative_to(ROOT).as_posix()
        for package, patterns in setuptools_table["package-data"].items()
        for pattern in patterns
        for path in (ROOT / folders()[package]).glob(pattern)
    }
    assert named == data


#: What a folder imports of the kit besides itself, and the modules that import more: ARCHITECTURE.md has the floors.
MAY_IMPORT = {
    "bench": (
        "gradconform.adapter",
        "gradconform.reference",
        "gradconform.runtime",
        "gradconform.swap",
        "gradconform.target",
    ),
    "conformance": ("gradconform",),
    "fixtures": (
        "gradconform.covering",
        "gradconform.exits",
        "gradconform.files.user_files",
        "gradconform.user_input.values",
        "gradconform.torch_releases",
        "gradconform.trees",
    ),
    "reference": (
        "gradconform.fixtures",
        "gradconform.adapter",
        "gradconform.devices.tensor_facts",
        "gradconform.runtime",
        "gradconform.target",
        "gradconform.torch_releases",
        "gradconform.trees",
    ),
}
MORE = {
    "conformance/__init__.py": (
        "gradconform.plugins.pytest.fixture_values.BuiltStage",
        "gradconform.plugins.pytest.fixture_values.OutputGrads",
        "gradconform.plugins.pytest.options.parametrize_checks",
    ),
    "fixtures/strategies.py": ("gradconform.adapter", "gradconform.trial.random_trials", "gradconform.trial.trial"),
}


def imported(module: Path) -> Iterator[str]:
    """Yield every module of the kit that a module imports, be it inside a function or for types only."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] == "gradconform")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "gradconform":
            yield from (f"{node.module}.{one.name}" for one in node.names)


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folders_import_only_allowed_folders(folder: str) -> None:
    seen = []
    for module in sorted((ROOT / folder).rglob("*.py")):
        if module.match(OFFERED):
            continue
        path = module.relative_to(ROOT).as_posix()
        for name in imported(module):
            seen.append(name)
            if name not in MORE.get(path, ()):
                assert not f"{name}.".startswith("gradconform.plugins."), f"{path} imports {name}"
                allowed = (TOP[folder], *MAY_IMPORT[folder], *MORE.get(path, ()))
                assert any(f"{name}.".startswith(f"{one}.") for one in allowed), f"{path} imports {name}"
    assert seen
    assert set(MORE) <= {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/*.py")}
