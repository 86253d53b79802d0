"""Each failure that the kit reports on an implementation is confirmed by a script that knows that implementation alone.

A folder beside this file holds the scripts, and in explained.toml which checks each of them explains. A check that
begins to fail without a script is a false alarm until somebody has confirmed it.
"""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from gradconform import contract
from tests.imported import packages_imported

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[2] / "docs" / "implementations.md").read_text(encoding="utf-8")
FOLDERS = sorted(path.parent for path in Path(__file__).parent.glob("*/explained.toml"))
TABLES: dict[str, dict[str, Any]] = {
    folder.name: tomllib.loads((folder / "explained.toml").read_text(encoding="utf-8")) for folder in FOLDERS
}
SCRIPTS = [(folder.name, script) for folder in FOLDERS for script in sorted(TABLES[folder.name]["scripts"])]
PATTERNS = [(name, glob) for name, table in TABLES.items() for globs in table["scripts"].values() for glob in globs]

# What a library runs as its own process does is told apart from what the scripts before it left: one process a folder.
# It ends without the interpreter's own ending, in which a library's worker threads that still run can abort it.
RUN_ALL = """
import contextlib, io, json, os, runpy, sys, traceback
seen = {}
for path in sys.argv[1:]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            runpy.run_path(path, run_name="__main__")
            code = "did not call sys.exit"
        except SystemExit as ending:
            code = ending.code
        except BaseException:
            code = traceback.format_exc()
    seen[path] = [code, printed.getvalue()]
print(json.dumps(seen), flush=True)
os._exit(0)
"""


def installed(name: str) -> str:
    """Return the version of a folder's library; skip the test where it is absent or the scripts tell of another."""
    table = TABLES[name]
    library, wanted = table.get("distribution", "torch"), table["version"]
    command = f"pip install --no-deps {library}=={wanted}"
    try:
        found = importlib.metadata.version(library).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed; the scripts tell of {wanted}: {command}")
    if found not in {wanted, *table.get("same_on", [])}:
        pytest.skip(f"the scripts tell of {library} {wanted}, this is {found}; run them to see what was mended")
    return found


def expected_endings(name: str) -> dict[Path, int]:
    """Return the exit code of each script of a folder, and of those that tell the same of another release.

    Of these, one whose checks are all spared shows its defect no more.
    """
    table, here = TABLES[name], Path(__file__).parent
    codes = {here / name / script: 1 for script in table["scripts"]}
    before = TABLES.get(table.get("inherits", ""), table)
    if before["version"] != table["version"]:
        spared = ids_matching(table["spared"])
        for script, globs in before["scripts"].items():
            codes[here / table["inherits"] / script] = int(bool(ids_matching(globs) - spared))
    return codes


def endings(paths: Sequence[Path]) -> dict[Path, tuple[object, str]]:
    """Run scripts and return their exit codes and what they printed."""
    command = [sys.executable, "-c", RUN_ALL, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {Path(path): (code, out) for path, (code, out) in json.loads(done.stdout.splitlines()[-1]).items()}


def report_on(name: str, folder: Path) -> dict[str, str]:
    """Judge a folder's target in a process of its own; return the status of every check."""
    path = folder / f"{name}.json"
    command = [sys.executable, "-m", "gradconform", "run", TABLES[name]["target"], "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert path.exists(), done.stderr
    return {result["check"]: result["status"] for result in json.loads(path.read_text(encoding="utf-8"))["results"]}


def ids_matching(globs: Sequence[str]) -> set[str]:
    """Return the ids of all checks, of whatever profile, that one of ``globs`` matches."""
    return {check for check in contract.checks_of() for pattern in globs if fnmatchcase(check, pattern)}


def explained(name: str) -> set[str]:
    """Return the checks that a folder's scripts explain, and those of the folder whose functions its target calls."""
    table = TABLES[name]
    globs = [*table["scripts"].values(), *table.get("also", {}).values()]
    own = ids_matching([glob for found in globs for glob in found])
    if "inherits" not in table:
        return own
    return own | (explained(table["inherits"]) - ids_matching(table["spared"]))


@pytest.mark.parametrize("name", [name for name in TABLES if expected_endings(name)])
def test_every_script_shows_its_defect_and_prints_expected_and_got(name: str) -> None:
    installed(name)
    expected = expected_endings(name)
    for script, (code, printed) in endings(list(expected)).items():
        assert code == expected[script], f"{script}: {printed}"
        assert "expected" in printed, script
        assert "got" in printed, script


#: What CI judges; the others are judged nightly.
IN_CI = ("d9d", "megatron_core", "torchpippy")


# torch's functions have a test of their own
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_CI else pytest.mark.nightly)
        for name in TABLES
        if TABLES[name]["target"] != "torch"
    ],
)
def test_scripts_explain_exactly_the_failing_checks_of_an_implementation(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = installed(name)
    statuses = report_on(name, tmp_path_factory.mktemp("reports"))
    failed = {check for check, status in statuses.items() if status == "failed"}
    judged = {check for check, status in statuses.items() if status != "unsupported"}
    assert sorted(explained(name) & judged - failed) == []
    assert sorted(failed - explained(name)) == []
    assert "error" not in statuses.values()
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| [{TABLES[name]['target']}]("))
    _, _, version, _, must, should, _ = row.strip("| ").split(" | ")
    if version.partition("+")[0] == found:  # the page is of one torch
        assert len(failed) == int(must) + int(should)


def test_each_pattern_of_a_table_matches_checks() -> None:
    assert PATTERNS
    assert [(name, pattern) for name, pattern in PATTERNS if not ids_matching([pattern])] == []


@pytest.mark.parametrize("name", TABLES)
def test_every_script_is_in_its_table(name: str) -> None:
    scripts = sorted(path.name for path in Path(__file__).with_name(name).glob("*.py"))
    assert scripts == sorted(TABLES[name]["scripts"])


@pytest.mark.parametrize("name", TABLES)
def test_a_script_of_another_folder_exists(name: str) -> None:
    missing = [
        path for path in TABLES[name].get("also", {}) if not Path(__file__).with_name(name).joinpath(path).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("name", TABLES)
def test_no_check_is_explained_by_two_scripts(name: str) -> None:
    table = TABLES[name]["scripts"]
    for script, globs in table.items():
        others = [pattern for other, found in table.items() if other != script for pattern in found]
        assert ids_matching(globs).isdisjoint(ids_matching(others)), script


def test_a_script_imports_only_its_library_torch_and_the_standard_library() -> None:
    for name, script in SCRIPTS:
        imported = packages_imported(Path(__file__).with_name(name).joinpath(script).read_text(encoding="utf-8"))
        assert imported <= {"torch", *TABLES[name].get("imports", []), *sys.stdlib_module_names}, (name, script)
        assert "torch" in imported, (name, script)


def test_a_script_describes_the_defect_in_its_first_sentence() -> None:
    for name, script in SCRIPTS:
        text = Path(__file__).with_name(name).joinpath(script).read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(text)) or ""
        assert docstring.partition("\n")[0].endswith("."), (name, script)
