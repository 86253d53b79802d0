"""A process of the kit, seen from its parent: orders go in, messages come out, and how it ended is known."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from select import select
from typing import IO, cast

from gradconform.exits import RunRefusedError

from .orphans import own_has_ended, start_own
from .pipes import ForeignBytesError, Message, Printed, Receiver, Sender, key_of
from .serving import STACK_SIGNAL

_BOOT = "import sys; sys.path[:] = sys.argv[7:]; from gradconform.process.serving import main; main()"

#: How often workers are looked after where none says anything, in seconds.
_LOOK = 0.25
#: How long the last of what an ended process said and printed may take to arrive, in seconds.
_GRACE = 1.0
#: How long a stuck process has to say where, in seconds.
_STACKS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of a process.

    ``code`` is as :mod:`subprocess` gives it, and None where the process was ended because it took longer than
    ``limit`` seconds. ``complaints`` is the end of what it wrote to its standard error, ``stacks`` what faulthandler
    wrote. ``foreign`` quotes what came on the pipe of its messages and is none, for which it was ended.
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
        """The exit code in words."""
        if self.foreign:
            return f"{self.foreign} on the pipe that is reserved for the kit's messages"
        return exit_in_words(self.code)

    @property
    def last_line(self) -> str:
        """The last line that it wrote to its standard error."""
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
    """Let a process write to ``file`` where its threads are, and wait until it has; one that is stopped never does."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, STACK_SIGNAL)
    until = time.monotonic() + _STACKS
    size = -1
    while time.monotonic() < until and (size <= 0 or size != os.fstat(file.fileno()).st_size):
        size = os.fstat(file.fileno()).st_size
        time.sleep(0.05)


class Worker:
    """A process that does one kind of work, told by messages. It ends with this one, however this one ends."""

    def __init__(self, work: str, given: Message, *, quiet: bool = False) -> None:
        """Start the process on ``work``, ``module:function`` as :data:`gradconform.process.serving` calls it.

        ``given`` is its first order. What a ``quiet`` one prints is kept for its :class:`Exit` alone.
        """
        orders, ours = os.pipe()
        messages, theirs = os.pipe()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 (the process writes to it as long as it lives)
        files = (orders, theirs, self._stacks.fileno())
        word = secrets.token_hex(8)
        try:
            self._process = start_own(
                lambda: subprocess.Popen(  # noqa: S603 (this interpreter, with code of our own)
                    [sys.executable, "-c", _BOOT, work, *map(str, (os.getpid(), word, *files)), *_module_path()],
                    pass_fds=files,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # so that what it has started, such as a build, is ended with it
                )
            )
        finally:
            os.close(orders)
            os.close(theirs)
        self._orders, self._receiver = Sender(ours), Receiver(messages, key_of(word, self._process.pid))
        self._to_close = (ours, messages)
        self._printed = Printed(cast("IO[bytes]", self._process.stdout), "stdout", passed_on=not quiet)
        self._complaints = Printed(cast("IO[bytes]", self._process.stderr), "stderr", passed_on=not quiet)
        self._limit: float | None = None
        self._since = 0.0
        self.send(given)

    def fileno(self) -> int:
        """Return the pipe of the messages, for :func:`wait_for`."""
        return self._receiver.fileno()

    @property
    def process(self) -> int:
        """The process id."""
        return self._process.pid

    def send(self, order: Message) -> None:
        """Send an order; that a process is gone is found when its messages are read."""
        with contextlib.suppress(OSError):
            self._orders.send(order)

    def expect(self, limit: float | None) -> None:
        """Let what begins now take ``limit`` seconds, as long as it likes with None: who takes longer has hung."""
        self._limit, self._since = limit, time.monotonic()

    def listen(self) -> Iterator[Message | Exit]:
        """Yield the messages that have come, and last how the process ended where it did; one that hangs is ended.

        Raises ``KeyboardInterrupt`` where the process was interrupted, and
        :class:`~gradconform.exits.RunRefusedError` with what else ended its work.
        """
        gone = not self._receiver.open or self._process.poll() is not None  # what it said before is read below
        try:
            yield from self._messages()
        except ForeignBytesError as error:
            stacks = self.close()
            yield Exit(code=-signal.SIGKILL, foreign=str(error), complaints=self._complaints.tail, stacks=stacks)
            return
        if gone:
            yield self._exit()
        elif self._limit is not None and time.monotonic() - self._since > self._limit:
            ask_for_stacks(self._process.pid, self._stacks)
            yield self._exit(self._limit)

    def _messages(self) -> Iterator[Message]:
        while self._receiver.open and select([self], [], [], 0)[0]:
            for message in self._receiver.receive():
                if "interrupted" in message:
                    raise KeyboardInterrupt
                if "refused" in message:
                    raise RunRefusedError(message["refused"], message["exit_code"])
                yield message

    def told(self) -> Iterator[Message | Exit]:
        """Yield all messages as they come, to the end of the process, which is last."""
        heard: Message | Exit | None = None
        while not isinstance(heard, Exit):
            wait_for([self])
            for heard in self.listen():
                yield heard

    def _exit(self, limit: float | None = None) -> Exit:
        if limit is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)  # its pipe is closed before it is gone
        code = self._process.poll() if limit is None else None
        stacks = self.close()
        return Exit(code=code, limit=limit, complaints=self._complaints.tail, stacks=stacks)

    def close(self) -> str:
        """End the process, whatever it is at; return the stacks that it wrote down."""
        if self._stacks.closed:
            return ""
        with contextlib.suppress(ProcessLookupError):  # the process may be gone, and what it has started not
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        own_has_ended(self._process.pid)
        self._receiver.open, self._limit = False, None  # whoever listens hears no more
        for stream in (self._printed, self._complaints):
            stream.wait(_GRACE)  # a process that the target left behind may hold it open
        for file in self._to_close:
            os.close(file)
        with self._stacks:
            self._stacks.seek(0)
            return self._stacks.read().decode(errors="replace")


def wait_for(workers: Iterable[Worker]) -> None:
    """Wait until one of ``workers`` has said something, or it is time to look after them."""
    select(list(workers), [], [], _LOOK)


def _module_path() -> list[str]:
    """Return where modules are looked for: the current folder last, it must not stand for what the kit imports.

    Unless the user's PYTHONPATH names it: then it stands where the user has put it.
    """
    here = {"", os.getcwd()} - {*os.environ.get("PYTHONPATH", "").split(os.pathsep)}  # noqa: PTH109 (texts, as sys.path)
    return sorted(sys.path, key=lambda folder: folder in here)
