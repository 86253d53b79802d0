"""Imports of large libraries without garbage collections, which scan all that was imported so far again and again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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
