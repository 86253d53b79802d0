"""Where a target is looked for first."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def current_folder_first() -> Iterator[None]:
    """Let a target be imported from the current folder, as ``python -m`` does; a console script does not."""
    folder = os.getcwd()  # noqa: PTH109 (sys.path holds strings)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
