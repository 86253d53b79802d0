"""ARCHITECTURE.md against the real import graph: floors, circles, and what may be imported late."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TOP = {
    "conformance": "gradconform",
    **{name: f"gradconform.{name}" for name in ("bench", "fixtures", "plugins", "reference")},
}

#: Tests in the style of other projects' suites, which no module imports: data, though they are Python.
OFFERED = "bench/upstream/*/test_*.py"

#: What takes long to import: a module that needs one of these may be imported late by one that does not.
SLOW = {
    "expecttest", "hypothesis", "jinja2", "jsonschema", "matplotlib", "numpy", "packaging", "pytest", "rich", "torch",
    "torch.distributed.tensor",
}  # fmt: skip


class Edge(NamedTuple):
    """One import: from a module to a module or a library; ``late`` inside a function, ``typed`` for types alone."""

    module: str
    imported: str
    line: int
    late: bool
    typed: bool


@dataclass(frozen=True)
class Graph:
    """All modules of the kit by import name, and all that they import."""

    modules: dict[str, Path]
    edges: tuple[Edge, ...]

    def within(self) -> Iterator[Edge]:
        """The imports of one of the kit's modules by another; the lazy public names of the top are no imports."""
        return (edge for edge in self.edges if edge.imported in self.modules and edge.imported != "gradconform")

    def slow(self, module: str) -> frozenset[str]:
        """The slow libraries that importing ``module`` imports, by way of whatever modules."""
        found, seen, todo = set[str](), {module}, [module]
        eager: dict[str, list[str]] = {}
        for edge in self.edges:
            if not edge.late and not edge.typed:
                eager.setdefault(edge.module, []).append(edge.imported)
        while todo:
            for name in eager.get(todo.pop(), []):
                parents = [".".join(name.split(".")[:count]) for count in range(1, name.count(".") + 2)]
                for one in parents if name in self.modules else [name]:
                    if one in self.modules and one not in seen:
                        seen.add(one)
                        todo.append(one)
                found |= SLOW.intersection(parents)
        return frozenset(found)


def named(path: Path) -> str:
    top, *below = path.relative_to(ROOT).with_suffix("").parts
    return ".".join([TOP[top], *(part for part in below if part != "__init__")])


def imports_of(name: str, path: Path, modules: dict[str, Path]) -> Iterator[Edge]:
    package = name if path.stem == "__init__" else name.rpartition(".")[0]

    def walk(node: ast.AST, *, late: bool, typed: bool) -> Iterator[Edge]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):  # it has no import
                continue
            inside = late or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                parts = package.split(".")
                above = parts[: len(parts) - child.level + 1] if child.level else []
                base = ".".join([*above, *([child.module] if child.module else [])])
                names = [f"{base}.{alias.name}" for alias in child.names]
            else:
                only_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                yield from walk(child, late=inside, typed=typed or only_types)
                continue
            for one in names:
                found = one
                while found.partition(".")[0] == "gradconform" and found not in modules:
                    found = found.rpartition(".")[0]
                if found != name:
                    yield Edge(name, found, child.lineno, late, typed)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), late=False, typed=False)


@cache
def graph() -> Graph:
    paths = [path for top in TOP for path in sorted((ROOT / top).rglob("*.py")) if not path.match(OFFERED)]
    modules = {named(path): path for path in paths}
    return Graph(modules, tuple(edge for name, path in modules.items() for edge in imports_of(name, path, modules)))


@cache
def listed_floors() -> dict[str, int]:
    """Return the floor of each folder, as the table of ARCHITECTURE.md says it."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return {folder: int(floor) for floor, folder in re.findall(r"^\| (\d+) \| `([\w/]+)/`", text, re.MULTILINE)}


def folder_of(module: str) -> str:
    """Return the folder of ARCHITECTURE.md that holds a module: the deepest one that the table names."""
    folder = graph().modules[module].parent.relative_to(ROOT)
    floors = listed_floors()
    return next(str(one) for one in (folder, *folder.parents) if str(one) in floors)


def test_the_table_lists_exactly_the_existing_folders() -> None:
    found = {path.parent.relative_to(ROOT) for path in graph().modules.values()}
    rooms = {
        f"conformance/{folder.parts[1]}" for folder in found if folder.parts[0] == "conformance" and folder.parts[1:]
    }
    assert set(listed_floors()) == rooms | set(TOP)


def listed_under(heading: str) -> set[str]:
    """Return the first cells of the table under a heading of ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([\w./]+)` \|", section, re.MULTILINE))


def test_the_root_has_at_most_ten_modules_and_the_page_lists_them() -> None:
    found = {path.stem for path in (ROOT / "conformance").glob("*.py")}
    assert listed_under("Modules at the root") == found
    assert len(found) <= 10


def small_modules() -> dict[str, str]:
    """Return the only importer of each module of fewer than 80 lines that has one importer."""
    importers: dict[str, set[str]] = {}
    for edge in graph().within():
        importers.setdefault(edge.imported, set()).add(edge.module)
    return {
        name: next(iter(importers[name]))
        for name, path in graph().modules.items()
        if path.name != "__init__.py" and length(name) < 80 and len(importers.get(name, ())) == 1
    }


def length(module: str) -> int:
    return len(graph().modules[module].read_text(encoding="utf-8").splitlines())


def test_the_page_lists_small_modules_with_one_importer_and_a_true_reason() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|`]+) \| (`[\w.]+`(?:, `[\w.]+`)*) \|$", text, re.MULTILINE)
    listed = {reason: [f"gradconform.{name}" for name in re.findall(r"[\w.]+", names)] for reason, names in rows}
    found = small_modules()
    assert sorted(name for names in listed.values() for name in names) == sorted(found)
    for name in listed["the importer is in another folder"]:
        assert folder_of(name) != folder_of(found[name]), name
    for name in listed["together they have more than 400 lines"]:
        assert length(name) + length(found[name]) > 400, name
    for name in listed["a start stays fast: imported at its first use"]:
        assert {edge.late for edge in graph().within() if edge.imported == name} == {True}, name


def test_the_page_is_short_and_each_path_it_names_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 170
    paths = re.findall(r"`((?:conformance|fixtures|reference|plugins|tests|docs|benchmarks)/[\w/.-]*)`", text)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_structured_folders_have_no_modules_at_their_root() -> None:
    loose = {path.name for path in (ROOT / "plugins").glob("*.py")} | {
        p.name for p in (ROOT / "tests").glob("test_*.py")
    }
    assert loose == {"__init__.py"}


def test_a_folder_imports_only_from_lower_floors() -> None:
    floors = listed_floors()
    wrong = [
        f"{edge.module}:{edge.line} imports {edge.imported}"
        for edge in graph().within()
        if edge.module not in ABOVE
        and folder_of(edge.module) != folder_of(edge.imported)
        and floors[folder_of(edge.module)] <= floors[folder_of(edge.imported)]
        and edge.module != "gradconform"
    ]
    assert wrong == []


#: Modules that stand above their folder, each with its reason.
ABOVE = {
    "gradconform.__main__": "it is the command",
    "gradconform.fixtures.strategies": "it draws whole trials for users, so it stands on trial/",
}


def test_there_are_no_import_cycles() -> None:
    before: dict[str, set[str]] = {}
    for edge in graph().within():
        if edge.module != "gradconform":
            before.setdefault(edge.module, set()).add(edge.imported)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " -> ".join(error.args[1]))


#: What every pytest session imports, used or not: here whatever an unused plugin does not need may come late.
AT_PYTESTS_START = {f"gradconform.plugins.pytest.{name}" for name in ("plugin", "reporter", "fixtures")}


def test_functions_import_only_slow_modules() -> None:
    wrong = [
        f"{edge.module}:{edge.line} imports {edge.imported} late"
        for edge in graph().edges
        if edge.late and edge.imported in graph().modules and graph().slow(edge.imported) <= graph().slow(edge.module)
    ]
    wrong = [found for found in wrong if found.partition(":")[0] not in AT_PYTESTS_START]
    assert wrong == []


def test_no_module_imports_a_test_or_a_benchmark() -> None:
    assert {edge.imported.partition(".")[0] for edge in graph().edges} & {"tests", "benchmarks"} == set()
