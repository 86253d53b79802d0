"""Reads and replaces a file that the user named: never blocks, limits the size, and writes it whole.

Opening a pipe without a writer blocks, and a device such as ``/dev/zero`` has no end. Both raise ``OSError``, like a
file that does not exist.
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

#: The largest size of a report, record file or bundle of a run, in bytes: a report of 5,000 results has about 5 MB.
LARGEST_REPORT = 64 * 2**20
#: The limit for each text in them, in bytes; the kit shortens the messages that a target raises.
LONGEST_TEXT = 2**20


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is an ordinary file; False if the system refuses it, such as a name that is too long."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def opened(path: str | os.PathLike[str], *, pipe: bool = False) -> BinaryIO:
    """Return the ordinary file at ``path``, open for reading; with ``pipe`` also a pipe that a shell passes as a file.

    Raises ``OSError`` for anything else or a missing file, and ``ValueError`` for an invalid path.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(file).st_mode
    # A pipe of the shell has no name in any folder: its writer exists.
    if not (stat.S_ISREG(mode) or (pipe and stat.S_ISFIFO(mode) and not Path(path).resolve().exists())):
        os.close(file)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    os.set_blocking(file, True)
    return os.fdopen(file, "rb")


def content(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of the file at ``path``, at most ``most`` bytes.

    Raises ``OSError`` if the file is larger, and the errors of :func:`opened`.
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
    """Return the number of the JSON line where a text of :data:`LONGEST_TEXT` bytes begins, None without one.

    A text that contains quotation marks may be longer, at most by the size of the file.
    """
    begins = 0
    while len(held) - begins >= LONGEST_TEXT:
        ends = held.rfind(b'"', begins, begins + LONGEST_TEXT)
        if ends < 0:
            return held.count(b"\n", 0, begins) + 1
        begins = ends + 1
    return None


def replace_file(path: str, content: str | bytes) -> None:
    """Write ``content`` to a temporary file next to ``path`` and move it there, so no reader sees a partial file."""
    replace_files({path: content})


def replace_files(contents: Mapping[str, str | bytes]) -> None:
    """Write each content next to its path, and move them there once all are written: all of them, or none."""
    written: list[tuple[Path, Path]] = []
    try:
        for path, content in contents.items():
            real = Path(path).resolve()
            written.append((_written_next_to(real, content), real))
        for temporary, real in written:
            temporary.replace(real)
    except BaseException:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)
        raise


def _written_next_to(real: Path, content: str | bytes) -> Path:
    handle, name = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # mkstemp makes a file that only its owner can read
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
