"""Notices on standard error about waits that take longer than a few seconds."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from gradconform.text.escaping import line_for_terminal

#: Seconds before the first line about a wait; each next line appears when the wait has doubled.
FIRST_LINE_AFTER = 5.0
FIRST_LINE_VARIABLE = "GRADCONFORM_WAIT_SECONDS"


def print_to_stderr(text: str) -> None:
    """Print one line of the command; a closed standard error is ignored."""
    with contextlib.suppress(OSError, ValueError):
        print(line_for_terminal(f"gradconform: {text}"), file=sys.stderr, flush=True)  # noqa: T201 (command output)


def first_line_after() -> float:
    """Return the seconds before the first line; the environment may override them."""
    try:
        seconds = float(os.environ.get(FIRST_LINE_VARIABLE, FIRST_LINE_AFTER))
    except ValueError:
        seconds = FIRST_LINE_AFTER
    return seconds if seconds > 0 else FIRST_LINE_AFTER


@contextlib.contextmanager
def waiting(what: str, limit: float | None = None, *, say: Callable[[str], None] = print_to_stderr) -> Iterator[None]:
    """Report that the kit is still doing ``what``, after 5 s, 10 s, 20 s and so on; it may take ``limit`` seconds."""
    waits = Waits(say)
    waits.begin(what, limit)
    try:
        yield
    finally:
        waits.close()


class Waits:
    """The current waits, each with a name; a thread reports those that take long."""

    def __init__(self, say: Callable[[str], None] = print_to_stderr) -> None:
        """Create without any wait; ``say`` receives each line."""
        self._say, self._after = say, first_line_after()
        self._changed = threading.Condition()
        self._going_on: dict[str, tuple[float, float | None]] = {}
        self._next: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, what: str, limit: float | None = None) -> None:
        """Begin a wait for ``what``, such as "loading the target"; it may take ``limit`` seconds, None for no limit."""
        with self._changed:
            self._going_on[what] = (time.monotonic(), limit)
            self._next[what] = self._after
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="gradconform-waits", daemon=True)
                self._thread.start()
            self._changed.notify()

    def end(self, what: str) -> None:
        """End the wait for ``what``, if it is active."""
        with self._changed:
            self._going_on.pop(what, None)
            self._next.pop(what, None)

    def close(self) -> None:
        """End all waits and the thread."""
        with self._changed:
            self._closed = True
            self._going_on.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                due = [self._going_on[what][0] + after for what, after in self._next.items()]
                self._changed.wait(max(0.01, min(due) - time.monotonic()) if due else None)
                if not self._closed:
                    self._report(time.monotonic())

    def _report(self, now: float) -> None:
        """Report the longest due wait in one line, and schedule the next report of each."""
        late = [what for what, (since, _) in self._going_on.items() if now - since >= self._next[what]]
        for what in late:
            self._next[what] = 2 * max(now - self._going_on[what][0], self._after)
        if late:
            first = min(late, key=lambda what: self._going_on[what][0])
            since, limit = self._going_on[first]
            most = "" if limit is None else f" (limit {limit:g} s)"
            self._say(f"still {first} after {now - since:.0f} s{most}")
