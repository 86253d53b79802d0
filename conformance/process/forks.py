"""Processes that a target forks: they may run their own code, but must not continue the kit's code."""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress
from types import TracebackType

#: The time in seconds for forked processes to return or end before the kit continues without them. A child that works
#: on for the implementation counts as not returned.
_PATIENCE = 2.0


class ForkedError(Exception):
    """The implementation forked, and its call returned in the child as well."""


class OneProcess:
    """A context that only one process leaves: a child that was forked inside it is ended at its exit.

    The original process then raises :class:`ForkedError`. A child that raises ``SystemExit`` ends with its own code,
    and causes no error.
    """

    __slots__ = ("_process",)

    def __init__(self) -> None:
        """Store this process's id."""
        self._process = os.getpid()

    def __enter__(self) -> None:
        """Start to watch forks."""
        with _FORKS.lock:  # two threads may do so at once
            _FORKS.watched += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End this process if it is a child; raise :class:`ForkedError` if a child has reached this point."""
        if os.getpid() != self._process:
            _FORKS.end_this(error)
        with _FORKS.lock:
            _FORKS.watched -= 1
        if _FORKS.children and _FORKS.one_came_back():
            msg = "the implementation forked, and its call came back in the child as well; the child was ended"
            raise ForkedError(msg) from error


class _Forks:
    """The forks of this process while they are watched. Each has a pipe that reports whether the child returned.

    ``watched`` is the number of calls that are watched, and changes under ``lock``. ``children`` are the reading ends;
    ``ancestors`` are the writing ends if this process is the child. A child that ends, or becomes another program,
    closes its end.
    """

    def __init__(self) -> None:
        self.watched = 0
        self.children: list[int] = []
        self.ancestors: list[int] = []
        self._of_thread = threading.local()
        self.lock = threading.Lock()

    def before(self) -> None:
        self._of_thread.pipe = os.pipe() if self.watched else None

    def in_parent(self) -> None:
        if (pipe := self._of_thread.pipe) is not None:
            os.close(pipe[1])
            self.children.append(pipe[0])

    def in_child(self) -> None:
        self.lock = threading.Lock()  # another thread of the parent may have held it
        if (pipe := self._of_thread.pipe) is not None:
            for file in (pipe[0], *self.children):
                os.close(file)
            self.children = []
            self.ancestors.append(pipe[1])

    def one_came_back(self) -> bool:
        """Wait until every child has returned, has ended, or has timed out; return whether one returned."""
        with self.lock:
            waiting, self.children = self.children, []
        until, found = time.monotonic() + _PATIENCE, False
        poll = select.poll()
        for file in waiting:
            poll.register(file, select.POLLIN | select.POLLHUP)
        left = set(waiting)
        while left and (seconds := until - time.monotonic()) > 0:
            for file, _ in poll.poll(1000 * seconds):
                found |= bool(os.read(file, 1))
                poll.unregister(file)
                left.remove(file)
        for file in waiting:
            os.close(file)
        return found

    def end_this(self, error: BaseException | None) -> None:
        """End this child process with the exit code of ``error``, and report to the processes that forked it."""
        if isinstance(error, SystemExit):
            os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
        for file in self.ancestors:
            with suppress(OSError):  # the parent waits no more
                os.write(file, b"!")
        os._exit(1)


_FORKS = _Forks()
os.register_at_fork(before=_FORKS.before, after_in_parent=_FORKS.in_parent, after_in_child=_FORKS.in_child)
