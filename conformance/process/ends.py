"""Detection of ``os._exit`` by a target: a command that ends this way has no verdict and reports that."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NoReturn


@contextlib.contextmanager
def end_seen(instead: Callable[[int], int]) -> Iterator[None]:
    """Make ``os._exit`` in this process call ``instead`` with its code and exit with the returned code.

    Processes that this one forks exit normally.
    """
    own, end = os.getpid(), os._exit

    def ended(status: int) -> NoReturn:
        end(instead(status) if os.getpid() == own else status)

    os._exit = ended
    try:
        yield
    finally:
        os._exit = end
