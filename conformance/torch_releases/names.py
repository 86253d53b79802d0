"""A name of torch that is private, or that some releases lack: its spellings, where it stands, and what needs it."""

from __future__ import annotations

import importlib
import importlib.metadata
from dataclasses import dataclass
from typing import Any

from gradconform.adapter import UnsupportedError
from gradconform.exits import EXIT_ENVIRONMENT


class UnavailableError(UnsupportedError, ImportError):
    """Something of the kit cannot be had with the torch that is there; the message says what torch lacks.

    It accuses no target: a check that meets it is ``unsupported``, and a command ends with the environment's exit code.
    """

    exit_code = EXIT_ENVIRONMENT


@dataclass(frozen=True, slots=True)
class Name:
    """A name in ``owner``, a module or ``module:what.is.in.it``, by its ``spellings``, the newest release's first.

    ``needed`` says what it is needed for, in words that follow *which*. A name ``of_instances`` is none of the class.
    """

    owner: str
    spellings: tuple[str, ...]
    needed: str
    of_instances: bool = False

    def find(self, owner: Any = None) -> Any:
        """Return what it stands for, in ``owner`` where one is given; raise :class:`UnavailableError` if nothing."""
        owner = self.home() if owner is None else owner
        return getattr(owner, self.spelled(owner))

    def spelled(self, owner: Any) -> str:
        """Return how the name is spelled in ``owner``; raise :class:`UnavailableError` where it is not there."""
        for spelling in self.spellings:
            if hasattr(owner, spelling):
                return spelling
        raise self.unavailable()

    def there(self, owner: Any = None) -> bool:
        """Tell whether the torch of this process has it."""
        owner = self.home() if owner is None else owner
        return any(hasattr(owner, spelling) for spelling in self.spellings)

    def unavailable(self) -> UnavailableError:
        """Return the error that says that it is not there."""
        module, _, inside = self.owner.partition(":")
        where = f"{module}.{inside}" if inside else module
        spellings = " or ".join(self.spellings)
        return UnavailableError(f"torch {installed()} has no {spellings} in {where}, which {self.needed}")

    def home(self) -> Any:
        """Return the module or object that the name is looked for in, None where this torch has none."""
        module, _, inside = self.owner.partition(":")
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            return None
        for part in inside.split(".") if inside else ():
            found = getattr(found, part, None)
        return found


def installed() -> str:
    """Return the version of the torch that is installed, without importing it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "(of no known version)"


def require(*names: Name) -> None:
    """Raise :class:`UnavailableError` for the first of the names that the torch of this process has not."""
    for name in names:
        name.find()
