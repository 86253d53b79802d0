"""Processes that workers leave behind: a target's daemon is ended with the worker in which it started.

A worker has a process group, which is ended with it. A process that leaves the group (``setsid``, a double fork) can be
found only on Linux. There, a worker adopts its descendants while it lives, and then its parent inherits them.
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

#: The time in seconds that a killed process may take to end; one blocked in the system may take longer.
_PATIENCE = 5.0


def keep_what_is_started(*, on: bool = True) -> None:
    """Start or stop inheriting all orphaned descendants in this process; only Linux supports this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


class _Own:
    """State shared by all threads of this process: its own processes that have not ended yet.

    ``looking`` counts the current users of orphan handling. ``before`` is whether this process inherited orphans
    before.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.started: set[int] = set()
        self.looking, self.before = 0, False

    def look(self) -> None:
        """Start to inherit, if no other user does yet."""
        with self.lock:
            if not self.looking:
                self.before = _keeps()
                keep_what_is_started()
            self.looking += 1

    def look_no_more(self) -> None:
        """Stop inheriting, if no other user needs it and this process did not inherit before."""
        with self.lock:
            self.looking -= 1
            if not self.looking:
                keep_what_is_started(on=self.before)


_OWN = _Own()


def start_own(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process of this one; it is no orphan until :func:`own_has_ended` reports its end."""
    with _OWN.lock:
        process = start()
        _OWN.started.add(process.pid)
    return process


def own_has_ended(process: int) -> None:
    """Record that a process of this one has ended and was waited for."""
    _OWN.started.discard(process)


def _keeps() -> bool:
    kept = ctypes.c_int()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(kept), 0, 0, 0)
    return bool(kept.value)


class Orphans:
    """The orphans that this process inherits from processes that it starts from now on, until it is closed.

    Such processes have sessions of their own, as each :class:`~gradconform.process.worker.Worker` has. A process that
    another thread starts meanwhile is left alone if it is such a worker, or in the session of this process.
    """

    def __init__(self) -> None:
        """Start to inherit."""
        self._before, self._closed = _children(), False
        _OWN.look()

    def end(self) -> None:
        """End all inherited processes."""
        until = time.monotonic() + _PATIENCE
        while (left := self._end()) and time.monotonic() < until:
            for process in left:  # their descendants follow in the next round
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.01)

    def _end(self) -> set[int]:
        with _OWN.lock:  # no unregistered process may start meanwhile
            left = _children() - self._before - _OWN.started
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        return left

    def close(self) -> None:
        """End the remaining orphans, and stop inheriting if this process did not inherit before."""
        if not self._closed:
            self._closed = True
            self.end()
            _OWN.look_no_more()


def _children() -> set[int]:
    """Return the children of this process that are in other sessions, as Linux lists them."""
    found: set[int] = set()
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found |= set(map(int, file.read_text(encoding="ascii").split()))
    return {process for process in found if _session(process) not in {None, os.getsid(0)}}


def _session(process: int) -> int | None:
    try:
        return os.getsid(process)
    except ProcessLookupError:
        return None
