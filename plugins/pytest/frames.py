"""Removes the kit's lines from the traceback of a failure in a user's test."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

import pytest

#: What the kit raises on purpose. Anything else that begins in the kit is a defect of it, and needs its lines.
_ON_PURPOSE = (AssertionError, ImportError, NotImplementedError, OSError, TypeError, ValueError)


def without_kit(excinfo: pytest.ExceptionInfo[BaseException]) -> pytest.ExceptionInfo[BaseException]:
    """Return the exception without the kit's frames, unless it is a defect of the kit.

    If no frame of a test would remain, nothing is changed.
    """
    error = excinfo.value
    entries = list(_entries(error.__traceback__))
    shown = [entry for entry in entries if _package(entry) != "gradconform"]
    of_kit = bool(entries) and _package(entries[-1]) == "gradconform"
    if (of_kit and not isinstance(error, _ON_PURPOSE)) or not shown or _package(shown[-1]) in {"_pytest", "pluggy"}:
        return excinfo
    linked = None
    for entry in reversed(shown):
        linked = TracebackType(linked, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return pytest.ExceptionInfo.from_exception(error.with_traceback(linked))


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _package(entry: TracebackType) -> str:
    return str(entry.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
