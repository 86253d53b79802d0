"""The lines of a target's file where its backward actions are defined, for annotations beside its code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, ModuleType

from gradconform.adapter import Adapter

from .functions import FULL, SPLIT, FunctionsAdapter

#: The method of a session, and the function of a namespace, for the letter of each action.
_METHODS = {"B": "backward", "I": "backward_input", "W": "backward_weight"}
_FUNCTIONS = {"B": FULL, "I": SPLIT[0], "W": SPLIT[1]}


def action_lines(adapter: Adapter, module: ModuleType, file: str) -> dict[str, int]:
    """Return the first line of each action in ``file`` by its letter; an action defined elsewhere is left out.

    The actions of an adapter are methods of its session. A session that no class of the module describes is unknown.
    """
    if isinstance(adapter, FunctionsAdapter):
        given: Mapping[str, object] = adapter.functions
        found = {letter: given.get(name) for letter, name in _FUNCTIONS.items()}
    else:
        found = {}
        for session in _sessions(module):
            found |= {letter: vars(session)[name] for letter, name in _METHODS.items() if name in vars(session)}
    return {letter: line for letter, action in found.items() if (line := _line(action, file)) is not None}


def _sessions(module: ModuleType) -> Iterator[type]:
    """Yield the classes of a module that define a backward action, in their order."""
    for value in vars(module).values():
        if isinstance(value, type) and not set(_METHODS.values()).isdisjoint(vars(value)):
            yield value


def _line(action: object, file: str) -> int | None:
    """Return the first line of a function if ``file`` defines it; decorators hide none that names what it wraps."""
    code = getattr(inspect.unwrap(action) if callable(action) else action, "__code__", None)
    if not isinstance(code, CodeType) or Path(code.co_filename) != Path(file):
        return None
    return code.co_firstlineno
