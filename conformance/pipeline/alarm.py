"""Ends a rank whose case takes too long, with the stacks of all its threads."""

from __future__ import annotations

import contextlib
import faulthandler
import time
from collections.abc import Iterator
from typing import TextIO

#: How much later a rank is ended that waits outside the implementation: the one that it waits for comes first. Less
#: than what the process group waits for longer than a case.
_GRACE_S = 4.0


class Alarm:
    """Writes stacks to ``file`` and ends the process where a case takes longer than ``limit`` seconds.

    The interpreter's own timer is used, since it fires in a thread that needs nothing of Python.
    """

    def __init__(self, limit: float, file: TextIO) -> None:
        """Keep what is needed; nothing is armed yet."""
        self._limit, self._file = limit, file
        self._until = 0.0

    def begin(self) -> None:
        """Arm it for a case that begins now."""
        self._until = time.monotonic() + self._limit
        self._arm(_GRACE_S)

    def end(self) -> None:
        """Disarm it."""
        faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Give no grace while the implementation under test runs."""
        self._arm(0.0)
        try:
            yield
        finally:
            self._arm(_GRACE_S)

    def _arm(self, grace: float) -> None:
        left = max(self._until + grace - time.monotonic(), 0.001)
        faulthandler.dump_traceback_later(left, exit=True, file=self._file)
