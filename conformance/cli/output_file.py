"""The files that commands write: refused before the run where they cannot be written, and never half written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gradconform.cli.console import complain
from gradconform.results import EXIT_ENVIRONMENT


class OutputFileError(ValueError):
    """A path that no report can be written to."""


def check_writable(path: str, *, option: str = "--json") -> str:
    """Return ``path`` where a report can be written to it; raise :class:`OutputFileError` where not."""
    real = Path(path).resolve()
    if not path.strip() or real.is_dir():
        problem = f"{option} {path!r} is a folder; expected the path of a file in it"
    elif not real.parent.is_dir():
        problem = f"{option} {path!r}: there is no folder {str(real.parent)!r}; make it first"
    elif real.exists() and not real.is_file():
        problem = f"{option} {path!r} is no ordinary file; expected a path that may be replaced"
    elif not os.access(real.parent, os.W_OK | os.X_OK) or (real.exists() and not os.access(real, os.W_OK)):
        problem = f"{option} {path!r} cannot be written to; choose another path or change its permissions"
    else:
        return path
    raise OutputFileError(problem)


def replace_file(path: str, content: str | bytes) -> None:
    """Write ``content`` beside ``path`` and move it there, so that a reader never sees half a file."""
    real = Path(path).resolve()
    handle, name = tempfile.mkstemp(prefix=f".{real.name}.", dir=real.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        mask = os.umask(0)
        os.umask(mask)
        beside.chmod(0o666 & ~mask)  # mkstemp makes a file that only its owner can read
        beside.replace(real)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def hand_over(path: str, content: str | bytes, *, code: int, what: str = "report") -> int:
    """Write a command's file and return ``code``; where it cannot be, say so and return the environment's exit code."""
    try:
        replace_file(path, content)
    except OSError as error:
        complain(f"the {what} could not be written to {path!r}: {error}")
        return EXIT_ENVIRONMENT
    return code
