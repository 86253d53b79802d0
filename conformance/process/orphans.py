"""What processes of the kit leave behind: a daemon of a target is ended with the worker that it was started in.

A worker has a process group, which is ended with it. What leaves the group (``setsid``, twice forked) comes back on
Linux alone: there a worker keeps what it has started as its own as long as it lives, and the process that has started
it inherits it then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37

#: How long what is killed may take to be gone, in seconds; what the system itself holds up may take longer.
_PATIENCE = 5.0


def keep_what_is_started(*, on: bool = True) -> None:
    """Let this process inherit all that its descendants leave behind, or no more; Linux alone can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


class _Own:
    """What this process has to do with processes, whichever thread it is: those that it started and has not ended yet.

    ``looking`` counts who looks after orphans now; ``before`` is whether this process inherited them before.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started: set[int] = set()
        self.looking, self.before = 0, False

    def look(self) -> None:
        """Begin to inherit, where nobody looks yet."""
        with self.lock:
            if not self.looking:
                self.before = _keeps()
                keep_what_is_started()
            self.looking += 1

    def look_no_more(self) -> None:
        """Inherit no more, where nobody else looks and this process did not before."""
        with self.lock:
            self.looking -= 1
            if not self.looking:
                keep_what_is_started(on=self.before)


_OWN = _Own()


def start_own(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process of this one, which is no orphan until :func:`own_has_ended` says that it is gone."""
    with _OWN.lock:
        process = start()
        _OWN.started.add(process.pid)
    return process


def own_has_ended(process: int) -> None:
    """Say that a process of this one has ended and was waited for."""
    _OWN.started.discard(process)


def _keeps() -> bool:
    kept = ctypes.c_int()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(kept), 0, 0, 0)
    return bool(kept.value)


class Orphans:
    """What this process inherits from those that it starts from now on, until it is closed.

    Those have sessions of their own, as each :class:`~gradconform.process.worker.Worker` has. What another thread
    starts meanwhile is left alone where it is such a worker, or of the session of this process.
    """

    def __init__(self) -> None:
        """Begin to inherit."""
        self._before, self._closed = _children(), False
        _OWN.look()

    def end(self) -> None:
        """End all that was inherited."""
        until = time.monotonic() + _PATIENCE
        while (left := self._end()) and time.monotonic() < until:
            for process in left:  # what they have started comes next
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.01)

    def _end(self) -> set[int]:
        with _OWN.lock:  # nobody starts a process meanwhile that is not known yet
            left = _children() - self._before - _OWN.started
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        return left

    def close(self) -> None:
        """End what is left, and inherit no more, where this process did not before."""
        if not self._closed:
            self._closed = True
            self.end()
            _OWN.look_no_more()


def _children() -> set[int]:
    """Return the children of this process that are of other sessions, as Linux tells them."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has ended
            found |= set(map(int, file.read_text(encoding="ascii").split()))
    return {process for process in found if _session(process) not in {None, os.getsid(0)}}


def _session(process: int) -> int | None:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return None
