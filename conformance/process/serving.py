"""The process as seen from inside: it does the ordered work, and never outlives its parent."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import importlib
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from gradconform.exits import refusal

from .imports import imports_uncollected
from .interrupts import interrupted, interrupts_seen
from .orphans import keep_what_is_started
from .pipes import Message, Receiver, Sender, key_of

Orders = Iterator[Message]
Send = Callable[[Message], None]

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15

#: This process's own descriptors are this far below its limit, and below this maximum: larger tables use memory.
_ROOM, _FILES = 32, 1 << 16

#: The signal that requests the stacks of a process's threads.
STACK_SIGNAL = signal.SIGUSR1

#: The interval in seconds at which a process checks its parent if the system sends no notice.
_PERIOD = 0.5


def main() -> None:
    """Run the work that the first argument names, ``module:function``, until there are no more orders.

    The other arguments are the parent's process id, the word of this process's key, and file descriptors: orders,
    messages, stacks.
    """
    work, parent, word, *given = sys.argv[1:7]
    del sys.argv[1:]
    work_on(work, int(parent), word, list(map(int, given)))


def work_on(work: str, parent: int, word: str, files: Sequence[int]) -> None:
    """Run ``work``, ``module:function``, and end this process.

    ``files`` are the descriptors for orders, messages and stacks.
    """
    orders, messages, stacks = map(_out_of_the_way, files)
    end_with(parent)
    _show_as(work)
    keep_what_is_started()
    write_stacks_to(stacks)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is the interpreter's own
    send = Sender(messages, key_of(word)).send
    module, _, function = work.partition(":")
    try:
        with interrupts_seen():
            with imports_uncollected():
                work_module = importlib.import_module(module)
            getattr(work_module, function)(_orders(Receiver(orders)), send)
    except KeyboardInterrupt:
        if not interrupted():
            raise  # for example, a thread of the target
        send({"interrupted": True})
    except Exception as error:  # noqa: BLE001 (reported to the parent: each error has its own exit code)
        message, code = refusal(error)
        send({"refused": message, "exit_code": code})
    leave()


def _show_as(work: str) -> None:
    """Let ``ps`` and ``top`` show what this process does; only Linux supports this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, work.rpartition(".")[2].encode(), 0, 0, 0)


def _out_of_the_way(file: int) -> int:
    """Return another descriptor of an open file, which no target uses by chance, and close the old one.

    It is near the highest number that this process may have. Processes that the target starts do not inherit it.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _FILES if limit == resource.RLIM_INFINITY else min(limit, _FILES)
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, highest - _ROOM)
    os.close(file)
    return moved


def end_with(parent: int) -> None:
    """Kill this process when its parent ends, even while a target holds the interpreter.

    On Linux, the system does this; elsewhere a thread checks, which has to wait for the interpreter.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it may have ended already
            _kill_this()
    else:
        _when_gone(parent, _kill_this)


def tidy_without(parent: int, tidy: Callable[[], None]) -> None:
    """Call ``tidy`` and end this process when its parent ends, instead of killing it.

    This runs in a thread, not in a signal handler: an ``except`` can swallow an exception raised in a handler.
    """

    def act() -> None:
        try:
            tidy()
        finally:
            os._exit(1)

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
    _when_gone(parent, act)


def _when_gone(parent: int, act: Callable[[], None]) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PERIOD)
        act()

    threading.Thread(target=watch, name="look after the parent", daemon=True).start()


def _kill_this() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_stacks_to(file: int | IO[str]) -> None:
    """Write all threads' stacks to ``file`` at a fatal error of this process, or when its parent requests them."""
    faulthandler.enable(file)
    faulthandler.register(STACK_SIGNAL, file)


def _orders(receiver: Receiver) -> Orders:
    """Yield the orders, and read them as they arrive: a parent with many orders must not block."""
    waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def listen_to_parent() -> None:
        try:
            while receiver.open:
                for order in receiver.receive():
                    waiting.put(order)
        finally:  # also if a target has closed the pipe
            waiting.put(None)

    threading.Thread(target=listen_to_parent, name="listen to the parent", daemon=True).start()
    return iter(waiting.get, None)


def leave() -> None:
    """End this process at once: backends may abort at exit, which must not be blamed on a check."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(0)
