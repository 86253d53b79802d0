"""Decides who raised an exception: the implementation, or a mistake in the kit's own code."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import FrameType

from gradconform.adapter import Adapter
from gradconform.reference import autograd
from gradconform.target import functions

from .observation import Raised, is_lent

#: The folder of the kit's own adapters.
_SHIPPED = ("gradconform.plugins.adapters", functions.__name__)

#: The folder of the correct split and of plain autograd.
REFERENCE = Path(autograd.__file__).parent

#: Attributes that are read from an object without a call, though classes may run their own code for them.
_LOOKUPS = {"__getattr__", "__getattribute__"}


class AdapterMistakeError(Exception):
    """An adapter of the kit raised outside its implementation's calls; the message has the file and line."""


def mistake_in(adapter: Adapter, error: BaseException) -> AdapterMistakeError | None:
    """Return the mistake if a shipped ``adapter`` itself raised ``error``; None if the implementation did.

    The frames decide. An exception belongs to the implementation if it passed through its code, or through a call that
    the adapter makes in its name. Otherwise an exception raised by the adapter's code belongs to the adapter, even if
    torch or the standard library raised it for the adapter.
    """
    if not _within(type(adapter).__module__, _SHIPPED):
        return None
    own: tuple[FrameType, int] | None = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        name = _module(frame)
        if own is not None and frame.f_code.co_name in _LOOKUPS and not _within(name, _SHIPPED):
            break
        if frame.f_code in functions.CALLS or _within(name, (_implementation(adapter),)):
            return None
        if _within(name, _SHIPPED):
            own = frame, line
        elif not is_lent(name):
            own = None
    if own is None:
        return None
    place = f"{own[0].f_code.co_filename}:{own[1]}"
    return AdapterMistakeError(f"{place} raised {type(error).__name__}: {error}")


def raised_by_the_kit(raised: Raised, target_file: str | None) -> bool:
    """Return whether the target is the kit's own, and its code raised this or called the torch code that did.

    In that case no device is at fault. Another target that passes arguments which the correct split refuses is itself
    at fault; so are the faults and variants in the same folder.
    """
    return all(file is not None and Path(file).parent == REFERENCE for file in (raised.file, target_file))


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _implementation(adapter: Adapter) -> str:
    """Return the package of the code under test: its whole library, or for torch the module that the adapter drives."""
    drives = str(getattr(adapter, "drives", ""))
    library = drives.partition(".")[0]
    return drives.rpartition(".")[0] if library == "torch" else library
