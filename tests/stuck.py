"""Ends a stuck session but not a slow one: no process of a test has used a processor for minutes."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

#: A session is stuck after so long, in seconds; it is looked at so often.
QUIET_S, STEP_S = 300.0, 15.0

#: The share of a core: a polling process uses less, and a working one more.
_BUSY = 0.03


def used() -> float:
    """Return the processor time in seconds of this process and its descendants, including those that ended."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = sum(os.times()[:4])
    for process in _below(os.getpid()):
        try:
            fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        total += sum(map(int, fields[11:15])) / ticks
    return total


def _below(process: int) -> Iterator[int]:
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in file.read_text(encoding="utf-8").split()]
        except OSError:
            continue
        for child in children:
            yield child
            yield from _below(child)


class Watch(threading.Thread):
    """A thread that watches this process and its descendants, and ends it with every stack if they use no processor."""

    def __init__(self, quiet_s: float = QUIET_S, step_s: float = STEP_S) -> None:
        """Create the thread; it ends with the process, and watches only while a test is ``at_work``."""
        super().__init__(name="watch", daemon=True)
        self._quiet_s, self._step_s = quiet_s, step_s
        self.at_work = False

    def run(self) -> None:
        """Watch until the process ends."""
        last, quiet = used(), 0.0  # counted in steps: a machine that was asleep has used nothing either
        while True:
            time.sleep(self._step_s)
            now = used()
            idle = self.at_work and now - last <= _BUSY * self._step_s
            quiet = quiet + self._step_s if idle else 0.0
            if quiet > self._quiet_s:
                stream = sys.__stderr__ or sys.stderr
                print(f"stuck: nothing has used a processor for {self._quiet_s:g} s", file=stream, flush=True)
                faulthandler.dump_traceback(stream)
                os._exit(1)
            last = now


#: The one of this process; a worker that waits for its next test does nothing, and is not stuck.
WATCH = Watch()


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Watch the enclosed code, if the system reports the processor time of processes."""
    if not WATCH.is_alive() and Path("/proc/self/stat").is_file():
        WATCH.start()
    WATCH.at_work = True
    try:
        yield
    finally:
        WATCH.at_work = False
