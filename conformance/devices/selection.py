"""What is told of a name that does not exist or cannot be used. Nothing here imports torch."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar

from gradconform.results import EXIT_ENVIRONMENT, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Iterable


#: The dtypes that a run can be asked for.
DTYPE_NAMES = ("float64", "float32", "bfloat16", "float16")


class SelectionError(ValueError):
    """Something was asked for that does not exist or cannot be used: a check, a profile, a device or a dtype.

    ``exit_code`` is what the command ends with.
    """

    exit_code: ClassVar[int] = EXIT_USAGE


class UnusableDeviceError(SelectionError):
    """A device, or a dtype on it, was asked for by name and cannot be used here; the message quotes what failed."""

    exit_code: ClassVar[int] = EXIT_ENVIRONMENT


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return the names nearest to ``name``, for an error message; all of them where none is near.

    A name that holds what was typed is nearer than one that is spelled alike: of a long id a user has a part.
    """
    names = sorted(known)
    part = name.strip("*?.")
    holding = [known_name for known_name in names if part and part in known_name]
    return ", ".join(holding[:count] or difflib.get_close_matches(name, names, n=count, cutoff=0.4) or names)


def dtype_name(dtype: object) -> str:
    """Return the name of a dtype; raise :class:`SelectionError` for one that the kit does not run in."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_NAMES:
        msg = f"dtype {name!r} is not one the contract runs in; expected one of {nearest(name, DTYPE_NAMES)}"
        if name.startswith("complex"):
            msg += ". Its complex stages run in complex64 with float32, and in complex128 with float64"
        raise SelectionError(msg)
    return name
