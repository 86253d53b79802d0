"""Shared code of the builders of libraries' models: parses a name, and imports the library."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch import nn

from .error import StageError, StageNotInstalledError

#: A stage of a model: the last part of its name, what builds it, and an example of what it is fed.
Part = tuple[str, Callable[[], nn.Module], tuple[Any, ...]]


def name_and_size(text: str, prefix: str, description: str) -> tuple[str, bool]:
    """Return the name of a model, and whether to make it small; raise :class:`StageError` for another size."""
    name, _, size = text.removeprefix(prefix).partition("?")
    if size not in {"", "size=small", "size=full"}:
        msg = f"{description}: expected size=small or size=full, and cut=MODULE,… last; got {size!r}"
        raise StageError(msg)
    return name, size != "size=full"


def imported(library: str, description: str) -> Any:
    """Return a library, whose extra has its name; raise :class:`StageNotInstalledError` if it cannot be imported.

    A library that was built for another torch may raise any error.
    """
    try:
        return importlib.import_module(library)
    except Exception as error:
        why = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        msg = f"{description} requires {library}, which cannot be imported: {why}; pip install 'gradconform[{library}]'"
        raise StageNotInstalledError(msg) from error
