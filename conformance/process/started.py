"""A started process of the kit, seen from its parent: its id, its exit code and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .orphans import own_has_ended, start_own

_BOOT = "import sys; sys.path[:] = sys.argv[7:]; from gradconform.process.serving import main; main()"


def module_path(*, here: bool = True) -> list[str]:
    """Return the module search path with the current folder last, so that it cannot shadow the kit's imports.

    If the user's PYTHONPATH names the folder, it keeps the position that the user chose. Without ``here``, the folder
    is left out otherwise.
    """
    current = {"", os.getcwd()} - {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}  # noqa: PTH109 (texts, as sys.path)
    found = sorted(sys.path, key=lambda folder: folder in current)
    return [folder for folder in found if here or folder not in current]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a process needs at its start.

    ``work`` is ``module:function``, ``word`` is the start of its messages, and ``path`` is its module search path. The
    others are descriptors: it reads ``orders`` and writes the rest.
    """

    work: str
    word: str
    path: Sequence[str]
    orders: int
    messages: int
    stacks: int
    out: int
    err: int

    def close(self) -> None:
        """Close this process's copies of the descriptors, but for that of ``stacks``."""
        for file in (self.orders, self.messages, self.out, self.err):
            os.close(file)


class Started(Protocol):
    """A process that was started. It has a session of its own."""

    def pid(self) -> int | None:
        """Return the id; None while the process is not known to exist."""

    def at_work(self) -> int:
        """Return the id of the process whose stacks show what it does."""

    def poll(self) -> int | None:
        """Return the exit code as :mod:`subprocess` does; None while the process lives."""

    def wait(self, seconds: float) -> None:
        """Wait for the end for at most ``seconds``."""

    def end(self) -> None:
        """End the process and the others of its session's group, in any state, and wait for its end."""


def kill_group(process: int) -> None:
    """Kill a process and its group; it may be gone while its children live."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


class Fresh:
    """A process in a new interpreter."""

    def __init__(self, beginning: Beginning) -> None:
        """Start it; it inherits the descriptors."""
        files = (beginning.orders, beginning.messages, beginning.stacks)
        words = (beginning.work, str(os.getpid()), beginning.word, *map(str, files))
        try:
            self._process = start_own(
                lambda: subprocess.Popen(  # noqa: S603 (this interpreter, with code of our own)
                    [sys.executable, "-c", _BOOT, *words, *beginning.path],
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    stdout=beginning.out,
                    stderr=beginning.err,
                    start_new_session=True,  # so that its own children, such as a build, end with it
                )
            )
        finally:
            beginning.close()

    def pid(self) -> int:
        """Return the id."""
        return self._process.pid

    def at_work(self) -> int:
        """Return the id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code; None while the process lives."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """Wait for the end for at most ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end(self) -> None:
        """Kill the process and its group, and wait for its end."""
        kill_group(self._process.pid)
        self._process.wait()
        own_has_ended(self._process.pid)
