"""The pipes between a process and its parent: messages, each a line of JSON, and what the process prints.

Pipes of our own: pytest-xdist's execnet takes the standard streams for itself and turns what a target prints into
complaints, and the workers of multiprocessing may have no processes of their own, which a data loader needs.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any, Literal

from gradconform.sinks import for_terminal

Message = Mapping[str, Any]

_CHUNK = 1 << 20

#: How much of the end of what is printed is kept, and how long a line may be before it is passed on unfinished, in
#: characters.
_KEPT = 4000


class Sender:
    """The writing end of a pipe."""

    def __init__(self, file: int) -> None:
        self._file = file

    def send(self, message: Message) -> None:
        """Send one message; raise ``OSError`` where the other side is gone."""
        line = json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]


class Receiver:
    """The reading end of a pipe. ``open`` until the other side is gone; a line that it left unfinished is dropped."""

    def __init__(self, file: int) -> None:
        self._file, self._rest, self.open = file, b"", True

    def fileno(self) -> int:
        """Return the pipe, for whoever waits for several."""
        return self._file

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have come; waits for some where none has."""
        chunk = os.read(self._file, _CHUNK)
        self.open = bool(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


class Printed:
    """A stream of a process: ``tail`` is the end of it; passed on to the stream of the same name here by lines.

    Nothing in it does anything to a terminal, or to a CI that reads the log. A bar has a line each time it is drawn.
    """

    def __init__(self, stream: IO[bytes], name: Literal["stdout", "stderr"], *, passed_on: bool) -> None:
        """Begin to read."""
        self.tail = self._line = ""
        self._stream, self._name, self._passed_on = stream, name, passed_on
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the stream, at most so long."""
        self._thread.join(seconds)

    def _read(self) -> None:
        decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        with self._stream:
            while chunk := os.read(self._stream.fileno(), _CHUNK):
                text = decoder.decode(chunk)
                self.tail = (self.tail + text)[-_KEPT:]
                self._add(text)
        self._add(decoder.decode(b"", final=True), ended=True)

    def _add(self, text: str, *, ended: bool = False) -> None:
        """Pass on the lines that are whole; of one that does not end, what there is, with an end."""
        if not self._passed_on:
            return
        whole, end, rest = (self._line + text).rpartition("\n")
        cut = bool(rest) and (ended or len(rest) > _KEPT)
        self._line = "" if cut else rest
        if told := whole + end + (f"{rest}\n" if cut else ""):
            self._pass_on(for_terminal(told))

    def _pass_on(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a reader that went away stops no process
            # By name, at the last moment: a progress bar stands in for the stream while it is shown.
            out = getattr(sys, self._name)
            out.write(text)
            out.flush()
