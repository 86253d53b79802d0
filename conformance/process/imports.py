"""Makes large imports cheap: no garbage collection scans all of torch again and again, and processes share them."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator

#: torch, and what its first backward imports.
TORCH = ("torch", "torch.fx.experimental.symbolic_shapes")


@contextlib.contextmanager
def imports_uncollected() -> Iterator[None]:
    """Switch automatic garbage collection off while the enclosed code imports modules, and back to what it was."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def objects_frozen() -> Iterator[None]:
    """Exclude existing objects from garbage collection in the enclosed code, so that it does not scan all of torch.

    If a part of the process has frozen objects of its own, only those are excluded. An inner context excludes no more
    than the outermost: to count what is frozen takes as long as a scan.
    """
    with _Frozen.lock:
        _Frozen.users += 1
        if _Frozen.users == 1:
            _Frozen.by_others = gc.get_freeze_count() > 0
            if not _Frozen.by_others:
                gc.freeze()
    try:
        yield
    finally:
        with _Frozen.lock:
            _Frozen.users -= 1
            if not (_Frozen.users or _Frozen.by_others):
                gc.unfreeze()


class _Frozen:
    """The open contexts of :func:`objects_frozen`: their number, and whether others had frozen objects before."""

    lock = threading.Lock()
    users = 0
    by_others = False


class Sharing:
    """The open contexts of :func:`imports_shared`: their number, and the thread that opened the outermost one.

    ``end`` ends the process from which the others are forked; None if there is none.
    """

    lock = threading.RLock()
    users = 0
    thread = 0
    end: Callable[[], None] | None = None


@contextlib.contextmanager
def imports_shared() -> Iterator[None]:
    """Fork the kit's processes that start in this context from one that imports what they need, where that is possible.

    That process ends with the outermost context (:mod:`gradconform.process.fork_server`).
    """
    process = os.getpid()
    with Sharing.lock:
        Sharing.users += 1
        if Sharing.users == 1:
            Sharing.thread = threading.get_ident()
    try:
        yield
    finally:
        with Sharing.lock:
            Sharing.users -= 1
            if not Sharing.users and Sharing.end is not None and os.getpid() == process:
                Sharing.end()
                Sharing.end = None
