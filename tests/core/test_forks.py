"""Two threads may watch for forks at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gradconform.process import forks
from gradconform.process.forks import OneProcess


class _Slow(forks._Forks):
    """Counts with a pause between reading and writing, in which the other thread runs."""

    count = 0

    @property
    def watched(self) -> int:
        found = self.count
        time.sleep(0.01)
        return found

    @watched.setter
    def watched(self, value: int) -> None:
        self.count = value


def test_calls_in_two_threads_are_both_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: Any = _Slow()
    monkeypatch.setattr(forks, "_FORKS", slow)
    alone, both = OneProcess(), threading.Barrier(2)

    def call() -> int:
        both.wait()
        with alone:
            both.wait()
            return int(slow.count)

    with ThreadPoolExecutor(2) as threads:
        counts = [thread.result() for thread in [threads.submit(call), threads.submit(call)]]
    assert max(counts) == 2
    assert slow.count == 0
