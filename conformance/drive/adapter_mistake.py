"""Whose an exception is: the implementation's, or a mistake in code of the kit."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import FrameType

from gradconform import trees
from gradconform.adapter import Adapter
from gradconform.devices import memory
from gradconform.reference import autograd
from gradconform.target import functions

from .observation import Raised, is_lent

#: Where the kit's own adapters stand.
_SHIPPED = ("gradconform.plugins.adapters", functions.__name__)

#: The folder of the right split and of plain autograd.
_REFERENCE = Path(autograd.__file__).parent

#: The files in which the kit watches what a device computes, and copies it. No program needs what is done there.
_WATCHING = frozenset(
    [Path(str(module.__file__)) for module in (memory, trees)]
    + [
        Path(__file__).with_name(f"{name}.py")
        for name in ("driver", "lane", "operation_log", "streams", "surroundings", "watches")
    ]
)

#: What is looked up on an object is not called, though classes may answer for it in code of their own.
_LOOKUPS = {"__getattr__", "__getattribute__"}


class AdapterMistakeError(Exception):
    """What an adapter of the kit raised outside its implementation's calls; it says in which file and line."""


def mistake_in(adapter: Adapter, error: BaseException) -> AdapterMistakeError | None:
    """Return the mistake where a shipped ``adapter`` itself raised ``error``; None where the implementation did.

    The frames decide. An exception that passed through the implementation's code, or through a call that the adapter
    makes in its name, is the implementation's; of the others, one that the adapter's code raised is the adapter's, also
    where torch or the standard library raised it for the adapter.
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
    """Return whether the target is the kit's own, and its code raised this or called what raised it in torch.

    Then no device is at fault. Another target that calls the right split, with arguments that it refuses, is at fault
    itself; so are the faults and variants beside it.
    """
    return all(file is not None and Path(file).parent == _REFERENCE for file in (raised.file, target_file))


def of_a_watch(raised: Raised) -> bool:
    """Return whether the kit's own code raised this while it drove plain autograd, and no operation of the stage.

    A device that is out of memory or lost says so to whoever asks next, so that is not the kit's. Neither is what
    autograd's engine raises where plain autograd calls it.
    """
    if raised.memory or raised.broken or not raised.file:
        return False
    file = Path(raised.file)
    if file.parent == _REFERENCE:
        return not raised.engine
    return file in _WATCHING


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _implementation(adapter: Adapter) -> str:
    """Return the package of the code under test: all of its library, of torch the one that the adapter drives."""
    drives = str(getattr(adapter, "drives", ""))
    library = drives.partition(".")[0]
    return drives.rpartition(".")[0] if library == "torch" else library
