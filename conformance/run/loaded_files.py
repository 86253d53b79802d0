"""The files that a run loads by path, each with its hash: a run is resumed only with the same files."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from gradconform.devices.registry import registered_entries
from gradconform.user_input.option import OptionValues

#: Folders of installed packages. The versions of packages are in the report's environment.
_INSTALLED = {"site-packages", "dist-packages"}
#: The suffixes of compiled code, whose files may be too large to read.
_LIBRARIES = {".so", ".pyd", ".dylib", ".dll"}


def loaded_files(options: OptionValues, device_types: Iterable[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of each file that a run loads, by its path from the current folder.

    These are the files that options name (target, stages, schedules, lists of operations, device plugins), and the
    modules imported from the folders of these. A package whose entry point makes a device type usable has one digest.
    """
    named = list(_named(options))
    folders = {path.parent for path in named if path.suffix == ".py" and _INSTALLED.isdisjoint(path.parts)}
    found = {*named, *_imported_from(folders)}
    files = {_shown(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(found) if path.is_file()}
    return files | dict(_of_devices(device_types))


def _of_devices(device_types: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield a digest of each package that makes devices usable; the kit's own plugins are in the kit's hash."""
    registered = registered_entries()
    for device_type in device_types:
        package = registered[device_type].module.partition(".")[0] if device_type in registered else ""
        origin = _origin(package) if package not in {"", __name__.partition(".")[0]} else None
        if origin is not None:
            yield f"the plugin {package} of {device_type}", _digest(origin)


def _digest(origin: Path) -> str:
    """Return the digest of a module or a package's folder: the content of its sources, the time of its libraries."""
    inside = sorted(origin.parent.rglob("*")) if origin.name == "__init__.py" else [origin]
    found = hashlib.sha256()
    for path in inside:
        if path.suffix in {".py", *_LIBRARIES}:
            stat = path.stat()
            found.update(str(path.relative_to(origin.parent)).encode())
            found.update(path.read_bytes() if path.suffix == ".py" else f"{stat.st_size} {stat.st_mtime_ns}".encode())
    return found.hexdigest()


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
