"""Says of an absent library how it is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gradconform.adapter import NotInstalledError


@contextlib.contextmanager
def needed(library: str, command: str) -> Iterator[None]:
    """Turn a missing module into the error that names what to install; what else an import raises stays as it is."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = library if error.name in {None, library} else f"{library} ({error.name})"
        raise NotInstalledError(missing, command) from error
