"""The record of one defect, with the expected verdict of the kit."""

from __future__ import annotations

from dataclasses import dataclass

#: The placeholder of the target in a command.
TARGET = "TARGET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One defect from a public issue, or from the pull request that fixes it.

    ``project`` and ``number`` are those of the issue; ``part`` names one of several defects in it. ``area`` is its
    class. ``had`` and ``fixed_in`` are the versions, commits or pull requests with and without it. ``seen`` is the
    effect that a user saw, and ``fault`` is the mistake in the code. ``command`` are the words of a command of the kit,
    with :data:`TARGET` for ``broken`` or ``fixed``.

    ``causes`` are kinds of cause, or of finding if no cause can be named. Most failed checks must report one of them;
    they were written before the kit ran. ``real`` means that ``broken`` is the project's own code; else both versions
    are the smallest rebuild. ``missed`` is the reason why the kit does not find it, empty if it does. ``otherwise`` is
    the reason why it reports another cause.
    """

    project: str
    number: int
    area: str
    had: str
    fixed_in: str
    seen: str
    fault: str
    command: tuple[str, ...]
    broken: str
    fixed: str
    causes: tuple[str, ...]
    part: str = ""
    real: bool = False
    missed: str = ""
    otherwise: str = ""

    @property
    def id(self) -> str:
        """The name of the record, such as ``transformers-34191``."""
        name = f"{self.project.rpartition('/')[2].lower()}-{self.number}"
        return f"{name}-{self.part}" if self.part else name

    @property
    def link(self) -> str:
        """The address of its issue or pull request."""
        return f"https://github.com/{self.project}/issues/{self.number}"

    def words(self, target: str) -> tuple[str, ...]:
        """Return the command with a target in it."""
        return tuple(target if word == TARGET else word for word in self.command)
