"""Finds the git commit of a target's file, so that a report can be compared with the code that it judged."""

from __future__ import annotations

import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

#: The time limit for git: a report without a commit is still correct.
_SECONDS = 5.0


@lru_cache(maxsize=32)
def commit_of(file: str | None) -> str | None:
    """Return the commit of a file, with ``-dirty`` if the repository has changes; None if git does not track it.

    A file that is installed in an environment inside a repository does not belong to that repository.
    """
    if file is None or _git(file, "ls-files", "--error-unmatch", "--", Path(file).name) is None:
        return None
    return _git(file, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def _git(file: str, *words: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    try:
        done = subprocess.run(  # noqa: S603 (no shell, and each word is one of ours or the name of a file)
            [program, "-C", str(Path(file).parent), "-c", "core.fsmonitor=false", *words],
            capture_output=True,
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
