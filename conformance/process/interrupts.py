"""A user's ctrl-C, distinguished from a ``KeyboardInterrupt`` or an exit that other code raises."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

#: The signals that request a process's end: from a scheduler or ``timeout``, and from a terminal that closes.
_ENDINGS = (signal.SIGTERM, signal.SIGHUP)


class _Seen:
    """Whether a signal requested a stop, and who handles SIGINT; a process has one such state for all its code."""

    pressed = False
    acts: Callable[[int, FrameType | None], Any]


def _note(number: int, frame: FrameType | None) -> None:
    _Seen.pressed = True
    _Seen.acts(number, frame)


class EndedBySignal:
    """The signal that requested the end of this process; ``number`` is None before one arrives."""

    number: int | None = None


@contextlib.contextmanager
def endings_interrupt() -> Iterator[EndedBySignal]:
    """Raise ``KeyboardInterrupt`` for SIGTERM and SIGHUP, as for ctrl-C, and store which of them arrived first.

    A signal that the process ignores (``nohup`` ignores SIGHUP) stays ignored, and other code's handlers stay
    installed. Only the main thread can set handlers; in another thread, nothing changes. A process that is forked
    meanwhile ends by the signal, as if it had no handler.
    """
    ended, process = EndedBySignal(), os.getpid()

    def interrupt(number: int, _: FrameType | None) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if ended.number is not None:  # the report of the finished checks is being written
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
    """Record each SIGINT, SIGTERM and SIGHUP in addition to its handler's work; only the main thread gets one.

    At the end, ``KeyboardInterrupt`` is raised if one of these signals arrived and the interrupted code caught it.
    """
    acts = signal.getsignal(signal.SIGINT)
    if acts is _note or not _hears():
        yield
        return
    _Seen.pressed = False  # left by an earlier, finished use
    if not callable(acts):  # a shell's background job ignores SIGINT, but may still get a signal that requests its end
        yield
    else:
        _Seen.acts = acts
        signal.signal(signal.SIGINT, _note)
        try:
            yield
        finally:
            if signal.getsignal(signal.SIGINT) is _note:  # else other code has set a handler, which stays
                signal.signal(signal.SIGINT, acts)
    if _Seen.pressed:
        raise KeyboardInterrupt


def interrupted() -> bool:
    """Return whether a signal requested a stop since :func:`interrupts_seen` began; in another thread, False."""
    return _Seen.pressed and _hears()


def _hears() -> bool:
    return threading.current_thread() is threading.main_thread()


def pass_on_an_interrupt(error: BaseException) -> None:
    """Raise ``KeyboardInterrupt`` if a user interrupted the code that raised ``error``."""
    if interrupted():
        raise KeyboardInterrupt from error
