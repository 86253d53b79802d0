"""A person's ctrl-C, told from what somebody's code raises: a ``KeyboardInterrupt`` of its own, or an end of all."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: The signals that ask a process to end: of a scheduler or ``timeout``, and of a terminal that is closed.
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


class _Seen:
    """Whether a signal asked to stop, and who acts on a SIGINT: a process has one such signal, whatever runs in it."""

    pressed = False
    acts: Callable[[int, FrameType | None], Any]


def _note(number: int, frame: FrameType | None) -> None:
    _Seen.pressed = True
    _Seen.acts(number, frame)


class EndedBySignal:
    """The signal that asked this process to end; ``number`` is None before one arrives."""

    number: int | None = None


@contextlib.contextmanager
def endings_interrupt() -> Iterator[EndedBySignal]:
    """Raise ``KeyboardInterrupt`` for SIGTERM and SIGHUP, as for ctrl-C, and store which of them arrived first.

    A signal that the process ignores (``nohup`` ignores SIGHUP) stays ignored, and one that somebody handles stays
    theirs. Only the main thread can set handlers; in another thread nothing changes. A process that is forked meanwhile
    ends by the signal, as if nobody handled it.
    """
    ended, process = EndedBySignal(), os.getpid()

    def interrupt(number: int, _: FrameType | None) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if ended.number is not None:  # the report of what ran is being written
            return
        ended.number, _Seen.pressed = number, True
        raise KeyboardInterrupt

    own = [number for number in _ENDINGS if _hears() and signal.getsignal(number) is signal.SIG_DFL]
    for number in own:
        signal.signal(number, interrupt)
    try:
        yield ended
    finally:
        for number in own:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def interrupts_seen() -> Iterator[None]:
    """Note each SIGINT, SIGTERM and SIGHUP, beside what its handler does; only the main thread receives one.

    At the end ``KeyboardInterrupt`` is raised if one of these signals arrived and the interrupted code caught it.
    """
    acts = signal.getsignal(signal.SIGINT)
    if acts is _note or not _hears():
        yield
        return
    _Seen.pressed = False  # of an earlier one, which is over
    if not callable(acts):  # a shell's background job ignores SIGINT; one that asks it to end may arrive all the same
        yield
    else:
        _Seen.acts = acts
        signal.signal(signal.SIGINT, _note)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is _note:  # else somebody has set another one, which stays
                signal.signal(signal.SIGINT, acts)
    if _Seen.pressed:
        raise KeyboardInterrupt


def interrupted() -> bool:
    """Return whether a signal asked to stop since :func:`interrupts_seen` began; in another thread, False."""
    return _Seen.pressed and _hears()


def _hears() -> bool:
    return threading.current_thread() is threading.main_thread()


def pass_on_an_interrupt(error: BaseException) -> None:
    """Raise ``KeyboardInterrupt`` where it was a person who has interrupted what raised ``error``."""
    if interrupted():
        raise KeyboardInterrupt from error
