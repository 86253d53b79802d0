"""A command whose process a target ends at once (``os._exit``) has no verdict, and does not end as if it had one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import NoReturn


@contextlib.contextmanager
def end_seen(instead: Callable[[int], int]) -> Iterator[None]:
    """Let ``os._exit`` in this process call ``instead`` with its code, and end with the code that it returns.

    Processes that this one forks end as they want to.
    """
    own, end = os.getpid(), os._exit

    def ended(status: int) -> NoReturn:
        end(instead(status) if os.getpid() == own else status)

    os._exit = ended
    try:
        yield
    finally:
        os._exit = end
