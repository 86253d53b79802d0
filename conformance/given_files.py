"""A file that somebody named: opened without waiting, read no further than what it can be, and replaced whole.

A pipe that nobody writes to holds up whoever opens it, and a device such as ``/dev/zero`` has no end. Both are refused,
as ``OSError``, like a file that is not there.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20

#: What no report, record file or bundle of a run has more of, in bytes: a report of 5,000 results has about 5 MB.
LARGEST_REPORT = 64 * 2**20
#: What none of their texts reaches, in bytes; the kit shortens what a target raises.
LONGEST_TEXT = 2**20


def is_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether an ordinary file is there: none is under a name that the system refuses, as one that is too long."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def opened(path: str | os.PathLike[str], *, pipe: bool = False) -> BinaryIO:
    """Return the ordinary file at ``path``, open for reading; with ``pipe`` also what a shell hands over as a file.

    Raises ``OSError`` for anything else, as for what is not there, and ``ValueError`` for a path that cannot be one.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(file).st_mode
    # A pipe of the shell is no name in any folder: its writer is there.
    if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode) and not Path(path).resolve().exists())):
        os.close(file)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    os.set_blocking(file, True)
    return os.fdopen(file, "rb")


def content(path: str | os.PathLike[str], most: int) -> bytes:
    """Return what the file at ``path`` holds, ``most`` bytes of it.

    Raises ``OSError`` where there is more, and as :func:`opened`.
    """
    with opened(path, pipe=True) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return found


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of an ordinary file. Raises as :func:`opened`."""
    digest = hashlib.sha256()
    with opened(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def line_of_long_text(held: bytes) -> int | None:
    """Return the number of the line of JSON where a text of :data:`LONGEST_TEXT` bytes begins, None where none does.

    One with quotation marks in it may be longer, by no more than what the file has.
    """
    begins = 0
    while len(held) - begins >= LONGEST_TEXT:
        ends = held.rfind(b'"', begins, begins + LONGEST_TEXT)
        if ends < 0:
            return held.count(b"\n", 0, begins) + 1
        begins = ends + 1
    return None


def replace_file(path: str, content: str | bytes) -> None:
    """Write ``content`` beside ``path`` and move it there, so that a reader never sees half a file."""
    replace_files({path: content})


def replace_files(contents: Mapping[str, str | bytes]) -> None:
    """Write each content beside its path, and move them there once all are written: all of them, or none."""
    written: list[tuple[Path, Path]] = []
    try:
        for path, content in contents.items():
            real = Path(path).resolve()
            written.append((_written_beside(real, content), real))
        for beside, real in written:
            beside.replace(real)
    except BaseException:
        for beside, _ in written:
            beside.unlink(missing_ok=True)
        raise


def _written_beside(real: Path, content: str | bytes) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o666 & ~mask)  # mkstemp makes a file that only its owner can read
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return beside
