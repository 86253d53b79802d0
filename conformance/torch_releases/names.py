"""A torch name that is private, or missing in some releases: its spellings, its place and its purpose."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from dataclasses import dataclass
from typing import Any

from gradconform.adapter import UnsupportedError
from gradconform.exits import EXIT_ENVIRONMENT


class UnavailableError(UnsupportedError, ImportError):
    """The installed torch lacks a name that part of the kit needs; the message says which.

    It accuses no target: a check that meets it is ``unsupported``, and a command ends with the environment's exit code.
    """

    exit_code = EXIT_ENVIRONMENT


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: caches look names up
class Name:
    """A name in ``owner``, a module or ``module:what.is.in.it``, by its ``spellings``, the newest release's first.

    ``needed`` is its purpose, in words that follow *which*. A name ``of_instances`` is not on the class itself.
    """

    owner: str
    spellings: tuple[str, ...]
    needed: str
    of_instances: bool = False

    def find(self, owner: Any = None) -> Any:
        """Return the object with this name, in ``owner`` if given; raise :class:`UnavailableError` if there is none."""
        owner = self.home() if owner is None else owner
        return getattr(owner, self.spelled(owner))

    def spelled(self, owner: Any) -> str:
        """Return the name's spelling in ``owner``; raise :class:`UnavailableError` if it is missing there."""
        for spelling in self.spellings:
            if hasattr(owner, spelling):
                return spelling
        raise self.unavailable()

    def there(self, owner: Any = None) -> bool:
        """Return whether the torch of this process has it."""
        owner = self.home() if owner is None else owner
        for spelling in self.spellings:  # noqa: SIM110 (a generator takes three Python calls, and every action asks)
            if hasattr(owner, spelling):
                return True
        return False

    def unavailable(self) -> UnavailableError:
        """Return the error for the missing name."""
        module, _, inside = self.owner.partition(":")
        where = f"{module}.{inside}" if inside else module
        spellings = " or ".join(self.spellings)
        return UnavailableError(f"torch {installed()} has no {spellings} in {where}, which {self.needed}")

    def home(self) -> Any:
        """Return the module or object that holds the name; None if this torch has none."""
        module, _, inside = self.owner.partition(":")
        try:
            found: Any = sys.modules.get(module) or importlib.import_module(module)
        except ImportError:
            return None
        for part in inside.split(".") if inside else ():
            found = getattr(found, part, None)
        return found


def installed() -> str:
    """Return the version of the installed torch, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "(of no known version)"


def require(*names: Name) -> None:
    """Raise :class:`UnavailableError` for the first name that the torch of this process lacks."""
    for name in names:
        name.find()
