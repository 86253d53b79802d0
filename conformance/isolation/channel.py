"""What parent and worker say to each other: records and orders, each a line on a pipe of its own.

Pipes of our own: pytest-xdist's execnet takes the standard streams for itself and turns what a target prints into
complaints, and the workers of multiprocessing may have no processes of their own, which a data loader needs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gradconform.records import Place, Record, as_line

_CHUNK = 1 << 20


class Sender:
    """The writing end of a pipe."""

    def __init__(self, file: int) -> None:
        self._file = file

    def send(self, record: Mapping[str, Any]) -> None:
        """Send one record; raise ``OSError`` where the other side is gone."""
        line = as_line(record)
        while line:
            line = line[os.write(self._file, line) :]


class Receiver:
    """The reading end of a pipe. ``open`` until the other side is gone; a line that it left unfinished is dropped."""

    def __init__(self, file: int) -> None:
        self._file, self._rest, self.open = file, b"", True

    def fileno(self) -> int:
        """Return the pipe, for whoever waits for several."""
        return self._file

    def receive(self) -> Iterator[Record]:
        """Yield the records that have come; waits for some where none has."""
        chunk = os.read(self._file, _CHUNK)
        self.open = bool(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


def run_order(places: Iterable[Place], *, oracle: bool = False) -> dict[str, Any]:
    """Return the order to run ``places``: of the target, or with plain autograd in its place."""
    return {"record": "run order", "places": [list(place) for place in places], "oracle": oracle}
