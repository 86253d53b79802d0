"""The names that a user gives: profiles, seeds, counts and percentages, and the errors for unknown ones; plurals.

Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gradconform.exits import EXIT_ENVIRONMENT, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


Profile = Literal["quick", "standard", "full"]
Named = TypeVar("Named", bound=str)

#: From the smallest profile to the largest; each includes all checks of the smaller ones.
PROFILES: tuple[Profile, ...] = ("quick", "standard", "full")

#: The largest sizes at which blocks of models are tried.
Sizes = Literal["small", "large", "full"]

SIZES: tuple[Sizes, ...] = ("small", "large", "full")

#: The sizes of whole training steps.
SHARDED_PROFILES = PROFILES[:2]

#: The largest seed: torch's CPU generator reads only the lower 32 bits of a larger one, so two seeds would draw the
#: same.
LARGEST_SEED = 2**32 - 1

_WHOLE = 100.0


class SelectionError(UsageError):
    """A named check, profile, device or dtype does not exist or cannot be used."""


class UnusableDeviceError(SelectionError):
    """A device, or a dtype on it, was named and cannot be used here; the message quotes the error."""

    exit_code = EXIT_ENVIRONMENT


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return the known names nearest to ``name``, for an error message; all of them if none is near.

    A name that contains the typed text is nearer than one with a similar spelling: users often type part of a long id.
    The nearest ones begin with it.
    """
    names = sorted(known)
    part = name.strip("*?.")
    holding = [known_name for known_name in names if part and part in known_name]
    holding.sort(key=lambda one: (not one.startswith(f"{part}."), not one.startswith(part)))
    return ", ".join(holding[:count] or difflib.get_close_matches(name, names, n=count, cutoff=0.4) or names)


def profile_named(name: object) -> Profile:
    """Return the profile; raise :class:`SelectionError` for an unknown one."""
    return _one_of(PROFILES, "profile", name)


def sharded_profile_named(name: object) -> Profile:
    """Return the profile of a sharded stage; raise :class:`SelectionError` if not in :data:`SHARDED_PROFILES`."""
    return _one_of(SHARDED_PROFILES, "profile", name)


def sizes_named(name: object) -> Sizes:
    """Return the largest size of blocks to try; raise :class:`SelectionError` if not in :data:`SIZES`."""
    return _one_of(SIZES, "sizes", name)


def _one_of(known: Sequence[Named], word: str, name: object) -> Named:
    for one in known:
        if one == name:
            return one
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    msg = f"unknown {word} {name!r}{hint}; expected one of {', '.join(known)}"
    raise SelectionError(msg)


def seed_named(seed: Any) -> int:
    """Return the seed; raise :class:`SelectionError` for a value that a generator does not accept."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        msg = f"seed: expected an integer from 0 to {LARGEST_SEED}, got {seed!r}"
        raise SelectionError(msg)
    return seed


def seed_read(text: str) -> int:
    """Return the seed in ``text``; raise :class:`SelectionError` if it contains none."""
    if not text.isascii() or not text.isdigit() or int(text) > LARGEST_SEED:
        msg = f"expected an integer from 0 to {LARGEST_SEED}, got {text!r}"
        raise SelectionError(msg)
    return int(text)


def count_named(name: str) -> Callable[[Any], int]:
    """Return a function that returns the count in an option, and raises :class:`SelectionError` if it is not from 1."""

    def checked(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            msg = f"{name}: expected a whole number of at least 1, got {given!r}"
            raise SelectionError(msg)
        return given

    return checked


def count_read(text: str) -> int:
    """Return the count from 1 in ``text``; raise :class:`SelectionError` if it contains none."""
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        msg = f"expected a whole number of at least 1, got {text!r}"
        raise SelectionError(msg)
    return int(text)


_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def switch_read(given: object) -> bool:
    """Return whether a word or a value means on; raise :class:`SelectionError` if it is neither on nor off."""
    word = str(given).lower()
    if word not in _SWITCHES:
        msg = f"expected one of {', '.join(_SWITCHES)}, got {given!r}"
        raise SelectionError(msg)
    return _SWITCHES[word]


def percentage_named(given: float | str) -> float:
    """Return the percentage; raise :class:`SelectionError` if it is not from 0 to 100."""
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= _WHOLE:
        msg = f"require_device_execution: expected a number from 0 to 100, such as 95; got {given!r}"
        raise SelectionError(msg)
    return found


@contextlib.contextmanager
def current_folder_first() -> Iterator[None]:
    """Allow importing a target from the current folder, as ``python -m`` does and a console script does not."""
    folder = os.getcwd()  # noqa: PTH109 (sys.path holds strings)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
