"""The process itself, seen from inside: it does the work that it is told to, and never outlives its parent."""

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
from collections.abc import Callable, Iterator
from typing import IO

from gradconform.exits import refusal

from .interrupts import interrupted, interrupts_seen
from .orphans import keep_what_is_started
from .pipes import Message, Receiver, Sender, key_of

Orders = Iterator[Message]
Tell = Callable[[Message], None]

_PR_SET_PDEATHSIG = 1

#: Descriptors of this process's own lie so far below its limit, and below this one: a table of more takes memory.
_ROOM, _FILES = 32, 1 << 16

#: What a process is asked by for the stacks of its threads.
STACK_SIGNAL = signal.SIGUSR1

#: How often a process looks after its parent where the system does not tell it, in seconds.
_PERIOD = 0.5


def main() -> None:
    """Do the work that the first argument names, ``module:function``, until there are no more orders.

    The other arguments are the parent's process id, the word of this process's key, and file descriptors: orders,
    messages, stacks.
    """
    work, parent, word, *given = sys.argv[1:7]
    del sys.argv[1:]
    orders, messages, stacks = map(_out_of_the_way, map(int, given))
    end_with(int(parent))
    keep_what_is_started()
    write_stacks_to(stacks)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr] # it is the interpreter's own
    tell = Sender(messages, key_of(word, os.getpid())).send
    module, _, function = work.partition(":")
    try:
        with interrupts_seen():
            getattr(importlib.import_module(module), function)(_orders(Receiver(orders)), tell)
    except KeyboardInterrupt:
        if not interrupted():
            raise  # a thread of the target, say
        tell({"interrupted": True})
    except Exception as error:  # noqa: BLE001 (told to the parent: each has an exit code of its own)
        message, code = refusal(error)
        tell({"refused": message, "exit_code": code})
    leave()


def _out_of_the_way(file: int) -> int:
    """Return another descriptor of an open file, which no target meets by chance, and close the one that it had.

    It is near the highest that this process may have; a process that the target starts does not keep it open.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = _FILES if limit == resource.RLIM_INFINITY else min(limit, _FILES)
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, highest - _ROOM)
    os.close(file)
    return moved


def end_with(parent: int) -> None:
    """Let this process be killed when its parent is gone, even while a target holds the interpreter.

    On Linux the system does it; elsewhere a thread looks, which has to wait for the interpreter.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it may be gone already
            _kill_this()
    else:
        _when_gone(parent, _kill_this)


def tidy_without(parent: int, tidy: Callable[[], None]) -> None:
    """Let this process call ``tidy`` and end when its parent is gone, in place of being killed.

    A thread does it, not the handler of a signal: an exception of a handler is lost where it meets an ``except``.
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
    """Write there where all threads are, when a fatal error ends this process, or its parent asks for it."""
    faulthandler.enable(file)
    faulthandler.register(STACK_SIGNAL, file)


def _orders(receiver: Receiver) -> Orders:
    """Yield orders as they come, and read them when they come: a parent that has many must not wait."""
    waiting: queue.SimpleQueue[Message | None] = queue.SimpleQueue()

    def listen_to_parent() -> None:
        try:
            while receiver.open:
                for order in receiver.receive():
                    waiting.put(order)
        finally:  # also where a target has closed the pipe
            waiting.put(None)

    threading.Thread(target=listen_to_parent, name="listen to the parent", daemon=True).start()
    return iter(waiting.get, None)


def leave() -> None:
    """End this process at once: what backends do at exit may abort, and must not be taken for a check's doing."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(0)
