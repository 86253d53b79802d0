"""Names what holds a tensor that should have been freed, found by the garbage collector's references."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

from torch import nn

#: How many objects may lie between a tensor and what holds it: lists, dicts, modules, partial functions.
_DEPTH = 14

#: Where a module keeps its parts: what holds the module holds them.
_PARTS = frozenset({"_parameters", "_buffers", "_modules"})


def holder_of(held: object) -> str:
    """Return what holds ``held``, itself or in other objects.

    It is the attribute of a module, class or object, the variable of a function, or else the type of the last object
    that is found. It is "" if no Python object holds ``held``, as if an autograd graph does.
    """
    level: list[Any] = [held]
    seen, below = {id(held), id(level)}, dict[int, object]()
    for _ in range(_DEPTH):
        outer = _referrers(level, seen | {id(seen), id(below)})
        for referrer, child in outer:
            below[id(referrer)] = child
            name = next(_names(referrer, child, below.get(id(child))), "")
            if name:
                return name
        if not outer:
            break
        level = [referrer for referrer, _ in outer]
        del outer, referrer, child
        seen |= {id(level), *map(id, level)}
    level = [] if level[0] is held else level
    kinds = [type(one).__name__ for one in level if not isinstance(one, nn.Module)]
    return f"an object of type {kinds[0]}" if kinds else ""


@contextlib.contextmanager
def unfrozen() -> Iterator[None]:
    """Let the collector name references of frozen objects within the context."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()


def _referrers(level: list[Any], known: set[int]) -> list[tuple[Any, Any]]:
    """Return the objects that hold one of ``level``, each with it, but not the ``known`` ones and running frames."""
    held = {id(one): one for one in level}
    found = [one for one in gc.get_referrers(*level) if id(one) not in known | {id(held)} and not _runs(one)]
    return [(one, next(held[id(child)] for child in gc.get_referents(one) if id(child) in held)) for one in found]


def _runs(one: object) -> bool:
    """Return whether an object is a frame of the code that asks, or its generator: it holds what it looks for."""
    if isinstance(one, GeneratorType):
        return one.gi_running
    frame = inspect.currentframe() if isinstance(one, FrameType) else None
    while frame is not None and frame is not one:
        frame = frame.f_back
    return frame is not None


def _names(referrer: Any, child: object, inner: object) -> Iterator[str]:
    """Yield the name by which an object holds its ``child``, or what the child, its own dict, holds."""
    if isinstance(referrer, dict):
        if "__name__" in referrer and "__builtins__" in referrer:  # the variables of a module
            yield from (f"{name} of {_module(referrer)}" for name in _keys(referrer, child))
    elif isinstance(referrer, ModuleType):
        return
    elif isinstance(referrer, (FunctionType, GeneratorType)):
        yield f"a variable or default of {referrer.__qualname__}"
    elif isinstance(referrer, FrameType):
        yield f"a variable of {referrer.f_code.co_name}"
    elif isinstance(referrer, type):
        yield from (f"attribute {name!r} of class {referrer.__qualname__}" for name in _keys(vars(referrer), inner))
    else:
        held = inner if child is getattr(referrer, "__dict__", None) else child
        names = [*_keys(getattr(referrer, "__dict__", {}), held), *_slots(referrer, held)]
        parts = isinstance(referrer, nn.Module) and not _PARTS.isdisjoint(names)
        yield from () if parts else (f"attribute {name!r} of {type(referrer).__name__}" for name in names)


def _keys(variables: Any, value: object) -> list[str]:
    return [str(name) for name, one in list(variables.items()) if one is value]


def _slots(owner: object, value: object) -> list[str]:
    """Return the slots of an object that hold a value."""
    names = (name for kind in type(owner).__mro__ for name in _listed(vars(kind).get("__slots__", ())))
    return [name for name in names if getattr(owner, name, None) is value]


def _listed(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def _module(variables: dict[str, Any]) -> str:
    """Return a module's name, or its file's if a user's file was imported by its path."""
    name, file = str(variables["__name__"]), variables.get("__file__")
    own = name.rpartition(".")[2] == Path(file or "").stem
    return name if own or file is None else Path(file).name
