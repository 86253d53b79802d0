"""What processes of the kit leave behind: a daemon of a target is ended with the worker that it was started in.

A worker has a process group, which is ended with it. What leaves the group (``setsid``, twice forked) comes back on
Linux alone: there a worker keeps what it has started as its own as long as it lives, and the process that has started
it inherits it then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37

#: How long what is killed may take to be gone, in seconds; what the system itself holds up may take longer.
_PATIENCE = 5.0


def keep_what_is_started(*, on: bool = True) -> None:
    """Let this process inherit all that its descendants leave behind, or no more; Linux alone can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _keeps() -> bool:
    kept = ctypes.c_int()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(kept), 0, 0, 0)
    return bool(kept.value)


class Orphans:
    """What this process inherits from those that it starts from now on, until it is closed.

    Those have sessions of their own, as each :class:`~gradconform.process.worker.Worker` has. In between this process
    starts no other session but those that it names; what another thread of it starts in its own is left alone.
    """

    def __init__(self) -> None:
        """Begin to inherit."""
        self._before, self._closed, self._kept = _children(), False, _keeps()
        keep_what_is_started()

    def end(self, own: Iterable[int] = ()) -> None:
        """End all that was inherited; ``own`` are the processes that this one has itself started, and needs."""
        until = time.monotonic() + _PATIENCE
        while (left := _children() - self._before - {*own}) and time.monotonic() < until:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            for process in left:  # what they have started comes next
                with suppress(ChildProcessError):
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.01)

    def close(self) -> None:
        """End what is left, and inherit no more, where this process did not before."""
        if not self._closed:
            self._closed = True
            self.end()
            keep_what_is_started(on=self._kept)


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
