"""The kit's own files: a hash of each, a check that they are as installed, and the folder of its caches."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

_TOP = "gradconform"
#: Seconds after which a file in the folder for caches is removed: 30 days.
_OLD = 30 * 24 * 3600.0
#: Folders that an editable install keeps next to the package's own.
_SUBPACKAGES = ("bench", "fixtures", "plugins", "reference")
_SOURCES = frozenset({".py", ".toml", ".json", ".csv", ".html", ".css", ".js", ".j2", ".cpp"})


def cache_folder() -> Path:
    """Return the kit's folder in the user's cache folder; it may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _TOP


def remove_old(folder: Path) -> None:
    """Remove the cache files that were not written for 30 days: those of unused kit and torch versions."""
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > _OLD:
                file.unlink()


@lru_cache(maxsize=1)
def kit_files() -> Mapping[str, str]:
    """Return the SHA-256 of each file of the kit by installed path; it is the same for every kind of install."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted(_found())}


def kit_sha256(files: Mapping[str, str] | None = None) -> str:
    """Return one SHA-256 for all files: the hash of the lines ``path hash``, sorted."""
    given = kit_files() if files is None else files
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(given.items()))
    return hashlib.sha256(lines.encode(errors="surrogatepass")).hexdigest()  # paths from a bundle may be any text


def _found() -> Iterator[tuple[str, Path]]:
    for package in (_TOP, *(f"{_TOP}.{name}" for name in _SUBPACKAGES)):
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec is not None else []:
            for path in Path(folder).rglob("*"):
                if path.suffix in _SOURCES and path.is_file():
                    yield f"{package.replace('.', '/')}/{path.relative_to(folder).as_posix()}", path


def altered_since_installation() -> list[str] | None:
    """Return the kit's files that differ from the installer's record; None if it recorded none of them.

    An editable install has no record of the sources.
    """
    recorded = {
        str(file): file.hash.value
        for file in importlib.metadata.distribution(_TOP).files or []
        if file.hash is not None and file.hash.mode == "sha256" and str(file).startswith(f"{_TOP}/")
    }
    if f"{_TOP}/version.py" not in recorded:
        return None
    now = {name: _as_recorded(digest) for name, digest in kit_files().items()}
    return sorted(name for name in {**now, **recorded} if _is_source(name) and now.get(name) != recorded.get(name))


def _is_source(name: str) -> bool:
    return Path(name).suffix in _SOURCES


def _as_recorded(digest: str) -> str:
    """Return a digest in the form of RECORD files."""
    return base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b"=").decode()
