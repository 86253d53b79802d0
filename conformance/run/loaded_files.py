"""The files that a run loads by path, each with its hash: a run is resumed only with the same files."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from gradconform.user_input.option import OptionValues

#: Folders of installed packages. The versions of packages are in the report's environment.
_INSTALLED = {"site-packages", "dist-packages"}


def loaded_files(options: OptionValues) -> dict[str, str]:
    """Return the SHA-256 of each file that a run loads, by its path from the current folder.

    These are the files that options name (target, stages, schedules, lists of operations, device plugins), and the
    modules imported from the folders of these.
    """
    named = list(_named(options))
    folders = {path.parent for path in named if path.suffix == ".py" and _INSTALLED.isdisjoint(path.parts)}
    found = {*named, *_imported_from(folders)}
    return {_shown(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(found) if path.is_file()}


def _named(options: OptionValues) -> Iterator[Path]:
    for one in options.naming_files():
        for text in (one, one.partition(":")[0]) if isinstance(one, str) else ():
            if Path(text).is_file():
                yield Path(text).resolve()
                break
    for module in getattr(options, "device_plugins", ()):
        origin = _origin(module)
        if origin is not None:
            yield origin


def _origin(module: str) -> Path | None:
    """Return the file of a module; None where it has none, or cannot be found."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError, AttributeError):  # the run has already reported its error
            return None
        loaded = None if spec is None else spec.origin
    return Path(loaded).resolve() if loaded and Path(loaded).is_file() else None


def _imported_from(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of modules in ``folders``; each folder of the many modules is resolved once."""
    known, resolved = {str(folder) for folder in folders}, cache(os.path.realpath)
    for module in list(sys.modules.values()) if known else ():
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and resolved(os.path.dirname(file)) in known:  # noqa: PTH120 (a path object for each module would dominate the time)
            yield Path(file).resolve()


def _shown(path: Path) -> str:
    here = Path.cwd()
    return Path(os.path.relpath(path, here)).as_posix() if path.is_relative_to(here) else path.as_posix()
