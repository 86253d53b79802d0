"""The pipes between a process and its parent: messages, each a line of JSON, and the process's output.

The kit uses its own pipes for two reasons. pytest-xdist's execnet takes the standard streams and turns a target's
output into complaints. The workers of multiprocessing may not start processes, which a data loader needs. A target can
still reach the pipes: a library may write to every open descriptor, or fork. So each message of a process begins with
its key, which no other process and no other code has.
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

from gradconform.text.escaping import for_terminal

Message = Mapping[str, Any]

_CHUNK = 1 << 20

#: The number of characters of output kept from the end, and the longest line before it is passed on unfinished.
_KEPT = 4000


#: The number of bytes to quote from data that is no message.
_QUOTED = 40


class ForeignBytesError(Exception):
    """Data on a pipe is no message of the process at its other end."""


def key_of(word: str) -> str:
    """Return the key at the start of every message of a process; ``word`` is random, and is made for it."""
    return f"{word} "


class Sender:
    """The writing end of a pipe. Each message begins with ``key``."""

    def __init__(self, file: int, key: str = "") -> None:
        self._file, self._key, self._process = file, key.encode(), os.getpid()

    def send(self, message: Message) -> None:
        """Send one message; raise ``OSError`` if the other side is gone.

        A process that was forked from the creator of this sender must not send: it is ended.
        """
        if os.getpid() != self._process:
            os._exit(1)
        line = self._key + json.dumps(message, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(self._file, line) :]


class Receiver:
    """The reading end of a pipe. ``open`` until the other side is gone; an unfinished last line is dropped.

    Each message must begin with ``key``.
    """

    def __init__(self, file: int, key: str = "") -> None:
        self._file, self._key, self._rest, self.open = file, key.encode(), b"", True

    def fileno(self) -> int:
        """Return the pipe's descriptor, for waiting on several pipes."""
        return self._file

    def receive(self) -> Iterator[Message]:
        """Yield the messages that have arrived; wait for some if there are none.

        Raises :class:`ForeignBytesError` if other data arrived.
        """
        chunk = os.read(self._file, _CHUNK)
        self.open = bool(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            yield self._message(line)
        if not self._key.startswith(self._rest[: len(self._key)]):  # foreign data may never end
            raise ForeignBytesError(repr(self._rest[:_QUOTED]))

    def _message(self, line: bytes) -> Message:
        try:
            found = json.loads(line.removeprefix(self._key)) if line.startswith(self._key) else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ForeignBytesError(repr(line[:_QUOTED]))
        return found


#: The most characters of held-back output that are kept, from its end.
_MOST_HELD = 1 << 20

_held: list[tuple[str, str]] | None = None


@contextlib.contextmanager
def printed_afterwards() -> Iterator[None]:
    """Hold back the processes' output until the block ends, so that it does not split a progress display."""
    global _held  # noqa: PLW0603 (one list for the threads that read the streams)
    if _held is not None:
        yield
        return
    _held = []
    try:
        yield
    finally:
        reported, _held = _held, None
        for name, text in reported:
            _print(name, text)


def _print(name: str, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a closed reader must not stop a process
        # Look the stream up by name at the last moment: a progress bar replaces it while it is shown.
        out = getattr(sys, name)
        out.write(text)
        out.flush()


class Printed:
    """An output stream of a process: ``tail`` is its end; whole lines are passed on to the same stream here.

    Control sequences are removed, so the output cannot affect a terminal, or a CI that reads the log. A progress bar
    has one line each time it is drawn.
    """

    def __init__(self, stream: IO[bytes], name: Literal["stdout", "stderr"], *, passed_on: bool) -> None:
        """Start reading."""
        self.tail = self._line = ""
        self._stream, self._name, self._passed_on = stream, name, passed_on
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the stream, for at most this many seconds."""
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
        """Pass on the whole lines; with ``ended``, also the unfinished last one, with a newline."""
        if not self._passed_on:
            return
        whole, end, rest = (self._line + text).rpartition("\n")
        cut = bool(rest) and (ended or len(rest) > _KEPT)
        self._line = "" if cut else rest
        if reported := whole + end + (f"{rest}\n" if cut else ""):
            self._pass_on(for_terminal(reported))

    def _pass_on(self, text: str) -> None:
        if (held := _held) is None:
            _print(self._name, text)
            return
        held.append((self._name, text))
        while sum(len(one) for _, one in held) > _MOST_HELD:
            held.pop(0)
