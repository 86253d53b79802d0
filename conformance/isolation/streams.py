"""What a worker prints: passed on to the parent's own streams as it comes, and the last of it kept."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading
from typing import IO, Literal

_CHUNK = 1 << 16

#: How much of the end is kept, in characters.
_KEPT = 4000


class Forwarded:
    """A stream of a worker that is passed on to the stream of the same name here; ``tail`` is the end of it."""

    def __init__(self, stream: IO[bytes], name: Literal["stdout", "stderr"]) -> None:
        """Begin to pass on."""
        self.tail = ""
        self._stream, self._name = stream, name
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Wait for the end of the stream, at most so long."""
        self._thread.join(seconds)

    def _pass_on(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with self._stream:
            while chunk := os.read(self._stream.fileno(), _CHUNK):
                text = decoder.decode(chunk)
                self.tail = (self.tail + text)[-_KEPT:]
                with contextlib.suppress(OSError, ValueError):  # a reader that went away stops no worker
                    # By name, at the last moment: a progress bar stands in for the stream while it is shown.
                    out = getattr(sys, self._name)
                    out.write(text)
                    out.flush()
