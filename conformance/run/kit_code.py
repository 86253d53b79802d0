"""The code of the kit in this process, stored to find out later whether anything replaced it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache, partial
from types import CellType, FunctionType, MappingProxyType, ModuleType
from typing import Any

from gradconform.contract.check import Check

_KIT = __name__.partition(".")[0]

#: Names that Python sets in every module.
_OF_PYTHON = frozenset({"__builtins__", "__cached__", "__doc__", "__file__", "__loader__", "__path__", "__spec__"})

_CACHED = type(lru_cache(str))
#: What has a function's code in it.
_WITH_CODE = (FunctionType, property, staticmethod, classmethod, cached_property, partial, _CACHED)

#: A value by its name in messages, and where it is: in a mapping, under a key.
Entry = tuple[str, Mapping[str, Any], str, object]


class KitCode:
    """All that the loaded modules of the kit consist of: their names, the members of their classes, and functions.

    No list says which modules judge: every loaded module of the kit is stored. Those of a target are loaded later.
    Each run compares several thousand entries, so the loops here call no Python function for each of them.
    """

    def __init__(self, checks: Iterable[Check] = ()) -> None:
        """Store the code of the kit as it is now, and the judges of ``checks``."""
        self._checks = [(check, check.judge, check.pooled, check.trials, check.level) for check in checks]
        modules = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == _KIT}
        self._defined: list[Entry] = []
        self._imported: list[Entry] = []
        for name, module in modules.items():
            self._store_module(name, vars(module))
        self._functions = _functions_in([entry[3] for entry in (*self._defined, *self._imported)])

    def _store_module(self, module: str, held: dict[str, Any]) -> None:
        for name, value in list(held.items()):
            if value is None or name in _OF_PYTHON:  # a value may replace None at its first use
                continue
            if isinstance(value, ModuleType) and value.__name__ == f"{module}.{name}":
                continue  # an import sets this, also one that repeats an earlier import
            defined = getattr(value, "__module__", module) == module
            (self._defined if defined else self._imported).append((f"{module}.{name}", held, name, value))
            if not defined:
                continue
            if isinstance(value, type):
                self._store_class(f"{module}.{name}", value)
            elif isinstance(value, (dict, MappingProxyType)):
                self._defined += [
                    (f"{module}.{name}[{key!r}]", value, key, inner)
                    for key, inner in value.items()
                    if isinstance(key, str) and callable(inner)
                ]

    def _store_class(self, place: str, owner: type) -> None:
        members = vars(owner)
        for name, value in list(members.items()):
            if callable(value) or hasattr(value, "__get__"):
                self._defined.append((f"{place}.{name}", members, name, value))
                if isinstance(value, type) and value.__qualname__ == f"{owner.__qualname__}.{name}":
                    self._store_class(f"{place}.{name}", value)

    def changed(self) -> str | None:
        """Return the name of something that is no longer as it was stored; None if all is."""
        for function, code, defaults, keywords in self._functions:
            if (
                function.__code__ is not code
                or function.__defaults__ is not defaults
                or function.__kwdefaults__ is not keywords
            ):
                return f"{function.__module__}.{function.__qualname__}"
        for entries in (self._defined, self._imported):
            for place, held, name, value in entries:
                if held.get(name) is not value:
                    return place
        for check, *stored in self._checks:
            if [check.judge, check.pooled, check.trials, check.level] != stored:
                return f"the check {check.id}"
        return None

    def __contains__(self, code: object) -> bool:
        """Return whether a function with this code is stored."""
        return any(stored[1] is code for stored in self._functions)


def _functions_in(values: list[object]) -> list[tuple[FunctionType, object, object, object]]:
    """Return every function that a value is or wraps, each with its code and its defaults."""
    found: dict[int, tuple[FunctionType, object, object, object]] = {}
    pending = values
    while pending:
        value = pending.pop()
        if not isinstance(value, FunctionType):
            if isinstance(value, _WITH_CODE):
                pending += _wrapped(value)
        elif id(value) not in found:
            found[id(value)] = (value, value.__code__, value.__defaults__, value.__kwdefaults__)
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
