"""Checks that a named target exists, without importing it, so that a typing error is reported at once."""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from gradconform.exits import UsageError
from gradconform.files.entry_points import entry_points
from gradconform.files.user_files import content, is_file

ENTRY_POINTS = "gradconform.adapters"

#: The expected forms of a name.
TARGET_SYNTAX = "package.module[:object] or path/to/file.py[:object]"

#: How many existing names a message lists.
_MOST_NAMES = 8

#: The largest source file that is read, in bytes.
_LARGEST = 2**22

#: A module that contains one of these has names that its source does not show.
_BY_HAND = {"__getattr__", "exec", "globals", "locals", "setattr", "vars"}


class TargetError(UsageError):
    """A target, or another object named in the same way, that cannot be found, imported or driven."""


@dataclass(frozen=True, slots=True)
class Named:
    """The place of an object, and its description in messages.

    ``where`` is a module or a file, with or without an object. ``text`` is the user's input, which may be one of the
    ``known`` names, and ``word`` is the kind of the named object.
    """

    where: str
    text: str
    known: Iterable[str] = ()
    word: str = "target"

    @property
    def description(self) -> str:
        """The beginning of a message about it."""
        return f"{self.word} {self.text!r}"

    @property
    def parts(self) -> tuple[str, str]:
        """The module or file, and the object in it, empty for none."""
        head, colon, tail = self.where.rpartition(":")
        # C:\stage.py has a colon that does not begin an attribute.
        return (head, tail) if colon and tail.replace(".", "").isidentifier() else (self.where, "")


def registered(group: str) -> dict[str, str]:
    """Return the names of an entry-point group and their objects."""
    return {entry.name: entry.value for entry in entry_points(group)}


class MissingNameError(TargetError):
    """A module or file whose source has no such name."""


def refuse_missing_target(target: str, *, imported: bool = True) -> None:
    """Raise :class:`TargetError` for a target that is not a registered name and does not exist.

    If it will be ``imported``, a name that its module's source lacks passes: the import may raise, and
    :func:`~gradconform.target.loading.load` then reports both.
    """
    known = registered(ENTRY_POINTS)
    if target in known:
        return
    try:
        refuse_missing(Named(target, target, known))
    except MissingNameError:
        if not imported:
            raise


def refuse_missing(named: Named) -> None:
    """Raise :class:`TargetError` for a missing file, module or name in it, with the existing ones.

    Cases that need an import pass.
    """
    where, attribute = named.parts
    if "\0" in where:  # from a settings file: neither a path nor a module contains it
        msg = f"{named.description} contains a null character; expected {TARGET_SYNTAX}"
        raise TargetError(msg)
    if where.endswith(".py"):
        refuse_missing_file(where, named)
        source: Path | None = Path(where)
    elif Path(where).is_dir() and (where.endswith((".", "/")) or not _spec_of(where)):
        raise TargetError(_folder(where, named))
    else:
        source = _module(where, named)
    if source is not None and attribute:
        _refuse_missing_name(source, attribute.partition(".")[0], where, named)


def refuse_missing_file(where: str, named: Named) -> None:
    """Raise if the file does not exist."""
    path = Path(where).resolve()
    if not is_file(path):
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.py")], n=3)
        hint = f"; nearest files: {', '.join(near)}" if near else ""
        msg = f"{named.description}: the file {where!r} does not exist{hint}"
        raise TargetError(msg)


def _folder(where: str, named: Named) -> str:
    files = sorted(path.name for path in Path(where).glob("*.py"))
    there = f"; it contains {_some(files)}" if files else "; it contains no Python file"
    return f"{named.description} is a folder; expected {TARGET_SYNTAX}{there}"


def _module(name: str, named: Named) -> Path | None:
    """Return the source of a module, None if it has no readable source; raise if the module does not exist."""
    spec: ModuleSpec | None = None
    parts = name.split(".")
    for number in range(1, len(parts) + 1):
        outer, spec = spec, _spec_of(".".join(parts[:number]), spec)
        if spec is None:
            if outer is None:
                raise TargetError(no_module(parts[0], named))
            raise TargetError(_no_submodule(".".join(parts[: number - 1]), parts[number - 1], outer, named))
    packed = spec is None or spec.submodule_search_locations is not None  # its modules are also names in it
    return None if packed or spec is None or not spec.has_location or spec.origin is None else Path(spec.origin)


def _spec_of(name: str, package: ModuleSpec | None = None) -> ModuleSpec | None:
    """Return the spec of a module, None if it is not found; a loaded module may not be findable."""
    if not name or not all(part.isidentifier() for part in name.split(".")):
        return None
    path = package.submodule_search_locations if package is not None else None
    if package is None or path is not None:
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    there = sys.modules.get(name)
    return None if there is None else getattr(there, "__spec__", None) or ModuleSpec(name, None)


def no_module(missing: str, named: Named) -> str:
    """Return the message for a name that is not a module."""
    known = list(named.known)
    as_file = named.parts[0].replace(".", "/") + ".py"
    if is_file(Path(as_file)):
        return f"{named.description}: cannot import module {missing!r}, but the file {as_file} exists; use that name"
    near = difflib.get_close_matches(named.text, known, n=3)
    modules = difflib.get_close_matches(missing, _modules_here(), n=3)
    hints = [f"nearest registered names: {', '.join(near)}"] if near else []
    hints += [f"nearest modules in this folder: {', '.join(modules)}"] if modules else []
    hints += [f"registered names: {', '.join(known)}"] if known and not hints else []
    hint = "".join(f"; {one}" for one in hints)
    if not known:
        return f"{named.description}: cannot import module {missing!r}{hint}. Expected {TARGET_SYNTAX}"
    return (
        f"{named.description} is not a registered name, and module {missing!r} cannot be imported{hint}. "
        f"Expected a registered name, {TARGET_SYNTAX}"
    )


def _modules_here() -> list[str]:
    return [path.stem for path in Path().glob("*.py")] + [path.parent.name for path in Path().glob("*/__init__.py")]


def _no_submodule(outer: str, missing: str, spec: ModuleSpec, named: Named) -> str:
    """Return the message for a missing submodule: the existing ones, or the nearest name."""
    if spec.submodule_search_locations is None:
        names = list(_defined(Path(spec.origin))) if spec.has_location and spec.origin else []
        near = difflib.get_close_matches(missing, names, n=1)
        hint = f"; did you mean {outer}:{near[0]}?" if near else _there(names)
        return f"{named.description}: {outer} is a module, not a package{hint}"
    inside = sorted(_inside(spec.submodule_search_locations))
    return f"{named.description}: {outer} has no module {missing!r}{_near(missing, inside)}"


def _inside(folders: Iterable[str]) -> Iterator[str]:
    for folder in map(Path, folders):
        yield from (path.stem for path in folder.glob("*.py") if path.stem != "__init__")
        yield from (path.parent.name for path in folder.glob("*/__init__.py"))


def _refuse_missing_name(source: Path, name: str, where: str, named: Named) -> None:
    """Raise if the source of a module shows that it has no such name."""
    text = _text(source)
    names = None if text is None else _names(text)
    if names is not None and name not in names:
        msg = f"{named.description}: {where} has no {name!r}{_near(name, list(_defined(source)))}"
        raise MissingNameError(msg)


def _near(missing: str, there: list[str]) -> str:
    near = difflib.get_close_matches(missing, there, n=3)
    return f"; nearest names: {', '.join(near)}" if near else _there(there)


def _there(names: Iterable[str]) -> str:
    public = [name for name in names if not name.startswith("_")]
    return f"; it defines {_some(public)}" if public else ""


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES])}{more}"


def _text(source: Path) -> bytes | None:
    if source.suffix != ".py":
        return None
    try:
        return content(source, _LARGEST)
    except (OSError, ValueError):
        return None  # the importer reports its error


def _tree(text: bytes | None) -> ast.Module | None:
    try:
        return None if text is None else ast.parse(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None  # as above


def _defined(source: Path) -> Iterator[str]:
    """Yield the functions, classes and values that a module defines at its top level."""
    tree = _tree(_text(source))
    for node in () if tree is None else tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


@lru_cache(maxsize=16)  # a process that runs often names few targets
def _names(text: bytes) -> frozenset[str] | None:
    """Return every name that a module may have by its source; None if the source does not show all."""
    tree = _tree(text)
    if tree is None:
        return None
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return None
        if isinstance(node, ast.Name | ast.FunctionDef) and _called(node) in _BY_HAND:
            return None
        if isinstance(node, ast.Attribute) and node.attr in {"modules", "__dict__"}:
            return None
        found.update(_bound(node))
    return frozenset(found)


def _called(node: ast.Name | ast.FunctionDef) -> str:
    return node.id if isinstance(node, ast.Name) else node.name


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, at any depth: a name bound in a function may be global there."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
