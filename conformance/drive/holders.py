"""Names what holds a tensor that should have been freed, found by the garbage collector's references."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any

#: How many containers may lie between a tensor and what holds it: a list in a dict in an attribute, and one more.
_DEPTH = 4

_CONTAINERS = (list, tuple, dict, set, frozenset, CellType)


def holder_of(held: object) -> str:
    """Return the module's or object's attribute that holds ``held``, itself or in containers; "" if none is found."""
    seen, level = {id(held)}, [held]
    for _ in range(_DEPTH):
        name = next((name for one in level for name in _of_modules(one)), "")
        if name:
            return name
        outer: list[Any] = []
        for one in level:
            referrers = [one for one in gc.get_referrers(one) if id(one) not in seen and one is not level]
            name = next((name for referrer in referrers for name in _of_objects(referrer, one)), "")
            if name:
                return name
            seen |= set(map(id, referrers))
            outer += [referrer for referrer in referrers if isinstance(referrer, _CONTAINERS)]
        level = outer
    return ""


def _of_modules(held: object) -> Iterator[str]:
    """Yield the names of modules' attributes that are ``held``."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if value is held:
                    yield f"{name} of {_named(module)}"


def _named(module: ModuleType) -> str:
    """Return a module's name, or its file's if a user's file was imported by its path."""
    file = getattr(module, "__file__", None)
    own = module.__name__.rpartition(".")[2] == Path(file or "").stem
    return module.__name__ if own or file is None else Path(file).name


def _of_objects(referrer: Any, held: object) -> Iterator[str]:
    """Yield the name of an attribute of an object, or of a function's variable, that is ``held``."""
    if isinstance(referrer, (*_CONTAINERS, ModuleType, FrameType)):
        return
    if isinstance(referrer, FunctionType):
        yield f"a variable or default of {referrer.__qualname__}"
        return
    own = getattr(referrer, "__dict__", {})
    yield from (f"attribute {name!r} of {type(referrer).__name__}" for name, value in own.items() if value is held)
