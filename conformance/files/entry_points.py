"""The kit's entry points that installed distributions have; a folder is searched again only after it has changed."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from functools import lru_cache
from pathlib import Path


def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
    """Return the entry points of one of the kit's groups, such as ``gradconform.adapters``."""
    folders = (folder or os.curdir for folder in sys.path)
    names = dict.fromkeys(name for folder in folders for name in _distributions_in(folder, _state_of(folder)))
    distributions = map(importlib.metadata.distribution, names)
    return [entry for found in distributions for entry in found.entry_points if entry.group == group]


def _state_of(folder: str) -> tuple[Path, int]:
    """Return a value that changes once a distribution is installed into a folder or removed from it."""
    path = Path(folder).absolute()
    try:
        return path, path.stat().st_mtime_ns
    except OSError:
        return path, 0


@lru_cache(maxsize=64)
def _distributions_in(folder: str, state: tuple[Path, int]) -> tuple[str, ...]:
    """Return the names of a folder's distributions that have entry points of the kit."""
    del state
    found = importlib.metadata.distributions(path=[folder])
    return tuple(one.name for one in found if "[gradconform." in (one.read_text("entry_points.txt") or ""))
