"""A worker process, seen from its parent: orders go in, records come out, and how it ended is known."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from select import select
from typing import IO, Any, cast

from gradconform.isolation.channel import Receiver, Sender
from gradconform.isolation.death import Death
from gradconform.isolation.streams import Forwarded
from gradconform.records import Record

# The module search path is the parent's: the current folder must not stand for what the kit imports.
_BOOT = "import sys; sys.path[:] = sys.argv[4:]; from gradconform.isolation.worker import main; main()"

#: How long a stuck worker has to say where, and what it printed to arrive, in seconds.
_GRACE = 1.0


class Worker:
    """A process that runs checks. It ends with this one, however this one ends."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Start the process; it makes the session that ``options`` describe."""
        orders, ours = os.pipe()
        records, theirs = os.pipe()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 (the process writes to it as long as it lives)
        files = (orders, theirs, self._stacks.fileno())
        try:
            self._process = subprocess.Popen(  # noqa: S603 (this interpreter, with code of our own)
                [sys.executable, "-c", _BOOT, *map(str, files), *sys.path],
                pass_fds=files,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        finally:
            os.close(orders)
            os.close(theirs)
        self._orders, self._to_close = Sender(ours), (ours, records)
        self.receiver = Receiver(records)
        self._printed = Forwarded(cast("IO[bytes]", self._process.stdout), "stdout")
        self._complaints = Forwarded(cast("IO[bytes]", self._process.stderr), "stderr")
        self.send(options)

    def fileno(self) -> int:
        """Return the pipe of the records, for whoever waits for several workers."""
        return self.receiver.fileno()

    def send(self, order: Mapping[str, Any]) -> None:
        """Send an order; one that is dead will be found to be so when its records are read."""
        with contextlib.suppress(OSError):
            self._orders.send(order)

    def spoke(self, seconds: float) -> bool:
        """Tell whether there are records, or the end of them, to be read; wait for them at most so long."""
        return bool(select([self], [], [], seconds)[0])

    def receive(self) -> list[Record]:
        """Return the records that have come; waits for some where none has."""
        return list(self.receiver.receive())

    @property
    def ended(self) -> bool:
        """Whether the process is gone; records may be left to read."""
        return not self.receiver.open or self._process.poll() is not None

    def death(self, *, limit: float | None = None) -> Death:
        """End the process if it is not gone, after ``limit`` seconds in one check, and return how it ended."""
        if limit is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)  # its pipe is closed before it is gone
        elif self._process.poll() is None:
            self._ask_for_stacks()
        code = self._process.poll() if limit is None else None
        stacks = self.stop()
        return Death.of(code, limit, complaints=self._complaints.tail, stacks=stacks)

    def _ask_for_stacks(self) -> None:
        self._process.send_signal(signal.SIGUSR1)
        until = time.monotonic() + _GRACE
        size = -1
        while time.monotonic() < until and (size <= 0 or size != os.fstat(self._stacks.fileno()).st_size):
            size = os.fstat(self._stacks.fileno()).st_size
            time.sleep(0.05)

    def stop(self) -> str:
        """End the process, whatever it is at; return the stacks that it wrote down."""
        if self._stacks.closed:
            return ""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._printed, self._complaints):
            stream.wait(_GRACE)  # a process that the target left behind may hold it open
        for file in self._to_close:
            os.close(file)
        with self._stacks:
            self._stacks.seek(0)
            return self._stacks.read().decode(errors="replace")
