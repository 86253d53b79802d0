"""Keeps garbage collection away from large imports and imported modules: it would scan all of torch again and again."""

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


@contextlib.contextmanager
def objects_frozen() -> Iterator[None]:
    """Exclude existing objects from garbage collection in the enclosed code, so that it does not scan all of torch.

    If a part of the process has frozen objects of its own, only those are excluded.
    """
    frozen_by_others = gc.get_freeze_count() > 0
    if not frozen_by_others:
        gc.freeze()
    try:
        yield
    finally:
        if not frozen_by_others:
            gc.unfreeze()
