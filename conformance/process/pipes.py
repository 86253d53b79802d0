"""The pipes between a process and its parent: messages, each a line of JSON, and what the process prints.

Pipes of our own: pytest-xdist's execnet takes the standard streams for itself and turns what a target prints into
complaints, and the workers of multiprocessing may have no processes of their own, which a data loader needs.
A target can meet them all the same: a library may write to every descriptor that there is, or fork. So what a process
tells begins with its key, which no other process and no other code has.
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


#: How much of what is no message is quoted, in bytes.
_QUOTED = 40


class ForeignBytesError(Exception):
    """What came through a pipe is no message of the process at its other end."""


def key_of(word: str, process: int) -> str:
    """Return what every message of a process begins with; ``word`` is drawn for it."""
    return f"{word}.{process} "


class Sender:
    """The writing end of a pipe. Each message begins with ``key``."""

    def __init__(self, file: int, key: str = "") -> None:
        self._file, self._key, self._process = file, key.encode(), os.getpid()

    def send(self, message: Message) -> None:
        """Send one message; raise ``OSError`` where the other side is gone.

        A process that was forked from the one that made this has nothing to tell: it is ended.
        """
        if os.getpid() != self._process:
            os._exit(1)
        line = self._key + json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]


class Receiver:
    """The reading end of a pipe. ``open`` until the other side is gone; a line that it left unfinished is dropped.

    Each message has to begin with ``key``.
    """

    def __init__(self, file: int, key: str = "") -> None:
        self._file, self._key, self._rest, self.open = file, key.encode(), b"", True

    def fileno(self) -> int:
        """Return the pipe, for whoever waits for several."""
        return self._file

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have come; waits for some where none has.

        Raises :class:`ForeignBytesError` where something else has come.
        """
        chunk = os.read(self._file, _CHUNK)
        self.open = bool(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield self._message(line)
        if not self._key.startswith(self._rest[: len(self._key)]):  # it may have no end
            raise ForeignBytesError(repr(self._rest[:_QUOTED]))

    def _message(self, line: bytes) -> Message:
        try:
            found = json.loads(line.removeprefix(self._key)) if line.startswith(self._key) else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ForeignBytesError(repr(line[:_QUOTED]))
        return found


#: The most that is kept of what processes print while it is held back, in characters: the end of it.
_MOST_HELD = 1 << 20

_held: list[tuple[str, str]] | None = None


@contextlib.contextmanager
def printed_afterwards() -> Iterator[None]:
    """Hold back what processes print until the block ends, so that it comes between no lines of a progress."""
    global _held  # noqa: PLW0603 (one list for the threads that read the streams)
    if _held is not None:
        yield
        return
    _held = []
    try:
        yield
    finally:
        told, _held = _held, None
        for name, text in told:
            _print(name, text)


def _print(name: str, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a reader that went away stops no process
        # By name, at the last moment: a progress bar replaces the stream while it is shown.
        out = getattr(sys, name)
        out.write(text)
        out.flush()


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
        if (held := _held) is None:
            _print(self._name, text)
            return
        held.append((self._name, text))
        while sum(len(one) for _, one in held) > _MOST_HELD:
            held.pop(0)
