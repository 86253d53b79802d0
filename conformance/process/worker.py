"""A process of the kit as seen from its parent: orders, messages, and how the process ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from select import select
from typing import IO

from gradconform.exits import RunRefusedError

from .fork_server import begin
from .pipes import ForeignBytesError, Message, Printed, Receiver, Sender, key_of
from .serving import STACK_SIGNAL
from .started import Beginning, module_path

#: The interval in seconds at which silent workers are checked.
_LOOK = 0.25
#: The interval in seconds at which a process is looked for that the fork server has yet to start.
_SOON = 0.01
#: The time in seconds for the last messages and output of an ended process to arrive.
_GRACE = 1.0
#: The time in seconds for a stuck process to write its stacks.
_STACKS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of a process.

    ``code`` is as :mod:`subprocess` gives it; None if the process was ended because it exceeded ``limit`` seconds.
    ``complaints`` is the end of its standard error, and ``stacks`` is faulthandler's output. ``foreign`` quotes data on
    the message pipe that is no message, for which the process was ended.
    """

    code: int | None
    limit: float | None = None
    foreign: str = ""
    complaints: str = ""
    stacks: str = ""

    @property
    def by_signal(self) -> bool:
        """Whether a signal ended it."""
        return self.code is not None and self.code < 0

    @property
    def words(self) -> str:
        """Return the exit code in words."""
        if self.foreign:
            return f"{self.foreign} on the pipe that is reserved for the kit's messages"
        return exit_in_words(self.code)

    @property
    def last_line(self) -> str:
        """Return the last line of its standard error."""
        return next((line.strip() for line in reversed(self.complaints.splitlines()) if line.strip()), "")


def exit_in_words(code: int | None) -> str:
    """Return ``exit code 3``, or the name of the signal for the negative code that :mod:`subprocess` gives it."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"


def ask_for_stacks(process: int, file: IO[bytes]) -> None:
    """Make a process write its threads' stacks to ``file``, and wait until it has; a stopped one never does."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, STACK_SIGNAL)
    until = time.monotonic() + _STACKS
    size = -1
    while time.monotonic() < until and (size <= 0 or size != os.fstat(file.fileno()).st_size):
        size = os.fstat(file.fileno()).st_size
        time.sleep(0.05)


class Worker:
    """A process that does one kind of work, controlled by messages. It ends with this one, however this one ends."""

    def __init__(self, work: str, given: Message, *, quiet: bool = False, imports: Sequence[str] = ()) -> None:
        """Start the process on ``work``, in the form ``module:function`` of :data:`gradconform.process.serving`.

        ``given`` is its first order. The output of a ``quiet`` process is kept only for its :class:`Exit`. ``imports``
        are slow modules of libraries and of the kit that ``work`` needs: a context of
        :func:`~gradconform.process.fork_server.imports_shared` imports them once for all its processes.
        """
        (orders, ours), (messages, theirs), (out, prints), (err, complains) = (os.pipe() for _ in range(4))
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 (the process writes to it as long as it lives)
        word = secrets.token_hex(8)
        self._orders, self._receiver = Sender(ours), Receiver(messages, key_of(word))
        self._to_close = (ours, messages)
        self._printed = Printed(os.fdopen(out, "rb", 0), "stdout", passed_on=not quiet)
        self._complaints = Printed(os.fdopen(err, "rb", 0), "stderr", passed_on=not quiet)
        self._limit: float | None = None
        self._since = 0.0
        files = (orders, theirs, self._stacks.fileno(), prints, complains)
        self._process = begin(Beginning(work, word, module_path(), *files), imports)
        self.send(given)

    def fileno(self) -> int:
        """Return the descriptor of the message pipe, for :func:`wait_for`."""
        return self._receiver.fileno()

    @property
    def process(self) -> int:
        """Return the process id, once the process exists."""
        while (process := self._process.pid()) is None:
            time.sleep(_SOON)
        return process

    def send(self, order: Message) -> None:
        """Send an order; a dead process is detected when its messages are read."""
        with contextlib.suppress(OSError):
            self._orders.send(order)

    def expect(self, limit: float | None) -> None:
        """Limit the work that starts now to ``limit`` seconds, None for no limit; beyond it, the process has hung."""
        self._limit, self._since = limit, time.monotonic()

    def listen(self) -> Iterator[Message | Exit]:
        """Yield the messages that have arrived, and last the process's end if it ended; a hung process is ended.

        Raises ``KeyboardInterrupt`` if the process was interrupted, and :class:`~gradconform.exits.RunRefusedError`
        with any other reason that ended its work.
        """
        gone = not self._receiver.open or self._process.poll() is not None  # its last messages are read below
        try:
            yield from self._messages()
        except ForeignBytesError as error:
            stacks = self.close()
            yield Exit(code=-signal.SIGKILL, foreign=str(error), complaints=self._complaints.tail, stacks=stacks)
            return
        if gone:
            yield self._exit()
        elif self._limit is not None and time.monotonic() - self._since > self._limit:
            ask_for_stacks(self._process.at_work(), self._stacks)
            yield self._exit(self._limit)

    def _messages(self) -> Iterator[Message]:
        while self._receiver.open and select([self], [], [], 0)[0]:
            for message in self._receiver.receive():
                if "interrupted" in message:
                    raise KeyboardInterrupt
                if "refused" in message:
                    raise RunRefusedError(message["refused"], message["exit_code"])
                yield message

    def messages(self) -> Iterator[Message | Exit]:
        """Yield all messages as they arrive, and last the end of the process."""
        heard: Message | Exit | None = None
        while not isinstance(heard, Exit):
            wait_for([self])
            for heard in self.listen():
                yield heard

    def _exit(self, limit: float | None = None) -> Exit:
        if limit is None:
            self._process.wait(_GRACE)  # its pipe closes before it ends
        code = self._process.poll() if limit is None else None
        stacks = self.close()
        return Exit(code=code, limit=limit, complaints=self._complaints.tail, stacks=stacks)

    def close(self) -> str:
        """End the process in any state, and return the stacks that it wrote."""
        if self._stacks.closed:
            return ""
        self._process.end()
        self._receiver.open, self._limit = False, None  # later listeners get nothing
        for stream in (self._printed, self._complaints):
            stream.wait(_GRACE)  # an orphan of the target may hold it open
        for file in self._to_close:
            os.close(file)
        with self._stacks:
            self._stacks.seek(0)
            return self._stacks.read().decode(errors="replace")


def wait_for(workers: Iterable[Worker]) -> None:
    """Wait until one of ``workers`` has a message, or until the next check of all workers is due."""
    select(list(workers), [], [], _LOOK)
