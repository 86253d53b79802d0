"""The code of the kit in this process, stored to find out later whether anything replaced it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sized
from functools import cached_property, lru_cache, partial
from operator import attrgetter, is_
from types import CellType, FunctionType, MappingProxyType, ModuleType
from typing import Any, NamedTuple

from gradconform.contract.check import Check

_KIT = __name__.partition(".")[0]

#: Names that Python sets in every module.
_OF_PYTHON = frozenset({"__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__path__", "__spec__"})

_CACHED = type(lru_cache(str))
#: What has a function's code in it.
_WITH_CODE = (FunctionType, property, staticmethod, classmethod, cached_property, partial, _CACHED)

#: What a function runs.
_CODE, _DEFAULTS, _KEYWORDS = map(attrgetter, ("__code__", "__defaults__", "__kwdefaults__"))


class _Members(NamedTuple):
    """Values of one mapping by their keys, each with its name in messages."""

    held: Mapping[str, Any]
    keys: list[str]
    values: list[object]
    places: list[str]

    def unchanged(self) -> bool:
        """Return whether all values are the same objects."""
        return all(map(is_, map(self.held.get, self.keys), self.values))


class _Function(NamedTuple):
    """A function with its code and its defaults."""

    function: FunctionType
    code: object
    defaults: object
    keywords: object

    @classmethod
    def of(cls, function: FunctionType) -> _Function:
        """Return a function as it is now."""
        return cls(function, function.__code__, function.__defaults__, function.__kwdefaults__)


class _Snapshot:
    """What some modules consist of. No list says which of them judge.

    A run compares several thousand values three times, so Python itself loops over them.
    """

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        """Store the names of the modules, the members of their classes, and all functions, as they are now."""
        self._modules = modules
        self._defined: list[_Members] = []
        self._imported: list[_Members] = []
        self._sizes: list[tuple[Sized, int]] = []
        self._empty: list[tuple[Mapping[str, Any], str]] = []
        for name, module in modules.items():
            self._store_module(name, vars(module))
        values = [value for members in (*self._defined, *self._imported) for value in members.values]
        self.functions = _functions_in(values)
        self._columns = tuple(map(list, zip(*self.functions, strict=True)))

    def _store_module(self, module: str, held: dict[str, Any]) -> None:
        defined = self._members(self._defined, held)
        imported = self._members(self._imported, held)
        for name, value in list(held.items()):
            if name in _OF_PYTHON:
                continue
            if value is None:  # a value may replace None at its first use
                self._empty.append((held, name))
                continue
            if isinstance(value, ModuleType) and value.__name__ == f"{module}.{name}":
                continue  # an import sets this, also one that repeats an earlier import
            place = f"{module}.{name}"
            if getattr(value, "__module__", module) != module:
                _add(imported, name, value, place)
                continue
            _add(defined, name, value, place)
            if isinstance(value, type):
                self._store_class(place, value)
            elif isinstance(value, (dict, MappingProxyType)):
                table = self._members(self._defined, value)
                for key, inner in value.items():
                    if isinstance(key, str) and callable(inner):
                        _add(table, key, inner, f"{place}[{key!r}]")

    def _store_class(self, place: str, owner: type) -> None:
        held = vars(owner)
        members = self._members(self._defined, held)
        for name, value in list(held.items()):
            if callable(value) or hasattr(value, "__get__"):
                _add(members, name, value, f"{place}.{name}")
                if isinstance(value, type) and value.__qualname__ == f"{owner.__qualname__}.{name}":
                    self._store_class(f"{place}.{name}", value)

    def _members(self, among: list[_Members], held: Mapping[str, Any]) -> _Members:
        self._sizes.append((held, len(held)))
        among.append(_Members(held, [], [], []))
        return among[-1]

    def is_of(self, modules: Mapping[str, ModuleType]) -> bool:
        """Return whether the modules are these and have neither new names nor changed ones."""
        return (
            modules == self._modules
            and all(len(held) == size for held, size in self._sizes)
            and all(name in held and held[name] is None for held, name in self._empty)
            and self.changed() is None
        )

    def changed(self) -> str | None:
        """Return the name of something that is no longer as it was stored; None if all is."""
        functions, codes, defaults, keywords = self._columns
        if not (
            all(map(is_, map(_CODE, functions), codes))
            and all(map(is_, map(_DEFAULTS, functions), defaults))
            and all(map(is_, map(_KEYWORDS, functions), keywords))
        ):
            now = map(_Function.of, functions)
            changed = (one for one, found in zip(self.functions, now, strict=True) if not all(map(is_, one, found)))
            other = next(changed)[0]
            return f"{other.__module__}.{other.__qualname__}"
        for members in (*self._defined, *self._imported):
            if not members.unchanged():
                held, keys, values, places = members
                return next(
                    place for key, value, place in zip(keys, values, places, strict=True) if held.get(key) is not value
                )
        return None


def _add(members: _Members, key: str, value: object, place: str) -> None:
    members.keys.append(key)
    members.values.append(value)
    members.places.append(place)


#: The last snapshot of this process: most runs after the first begin with the same code.
_LAST: list[_Snapshot] = []


def _snapshot() -> _Snapshot:
    """Return the loaded modules of the kit as they are now. Those of a target are loaded later."""
    modules = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == _KIT}
    if not (_LAST and _LAST[0].is_of(modules)):
        _LAST[:] = [_Snapshot(modules)]
    return _LAST[0]


class KitCode:
    """The code of all loaded modules of the kit, and the judges of some checks, as they were when this was created."""

    def __init__(self, checks: Iterable[Check] = ()) -> None:
        """Store the code of the kit as it is now, and the judges of ``checks``."""
        self._checks = [(check, check.judge, check.pooled, check.trials, check.level) for check in checks]
        snapshot = _snapshot()
        self._functions = snapshot.functions
        self._changed_code = snapshot.changed  # bound here: what replaces the method is found by it

    def changed(self) -> str | None:
        """Return the name of something that is no longer as it was stored; None if all is."""
        if (name := self._changed_code()) is not None:
            return name
        for check, *stored in self._checks:
            if [check.judge, check.pooled, check.trials, check.level] != stored:
                return f"the check {check.id}"
        return None

    def __contains__(self, code: object) -> bool:
        """Return whether a function with this code is stored."""
        return any(stored.code is code for stored in self._functions)


def _functions_in(values: list[object]) -> list[_Function]:
    """Return every function that a value is or wraps, each with its code and its defaults."""
    found: dict[int, _Function] = {}
    pending = values
    while pending:
        value = pending.pop()
        if not isinstance(value, FunctionType):
            if isinstance(value, _WITH_CODE):
                pending += _wrapped(value)
        elif id(value) not in found:
            found[id(value)] = _Function.of(value)
            if value.__closure__:
                pending += map(_content, value.__closure__)
    return list(found.values())


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None


def _wrapped(value: Any) -> tuple[object, ...]:
    """Return what is directly inside a wrapper."""
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, cached_property):
        return (value.func,)
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.values()
    return (value.__wrapped__,)  # a static method, a class method, a cached function
