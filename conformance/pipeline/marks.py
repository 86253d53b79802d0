"""Marks: what a rank is doing now, readable after it died. One small file per rank, overwritten in place."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

_WIDTH = 256  # a mark is written over the one before in one call, so that a reader never sees half of two


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a rank was: in which case and action, and whether the implementation under test was running."""

    case: str
    action: str = ""
    inside: bool = False


class Marker:
    """Writes the marks of one rank."""

    def __init__(self, path: Path) -> None:
        """Open the file; it stays open as long as the process lives."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self.now = Mark("")

    def put(self, mark: Mark) -> None:
        """Write a mark."""
        self.now = mark
        os.pwrite(self._file, json.dumps(asdict(mark)).ljust(_WIDTH).encode(), 0)

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Mark that the implementation under test runs; left as it is where it raises."""
        self.put(Mark(self.now.case, self.now.action, inside=True))
        yield
        self.put(Mark(self.now.case, self.now.action))


def read_mark(path: Path) -> Mark | None:
    """Return the last mark of a rank, or None where it never wrote one."""
    try:
        return Mark(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None
