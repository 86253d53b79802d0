"""What is known of one defect, and what the kit is expected to say of it."""

from __future__ import annotations

from dataclasses import dataclass

#: What stands in a command for the target.
TARGET = "TARGET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One defect that a public issue, or the pull request that mends it, reports.

    ``project`` and ``number`` say where; ``part`` names one of several that stand there. ``area`` is its class.
    ``had`` and ``mended_in`` are the versions, commits or pull requests with and without it, ``seen`` is what a user
    saw, ``fault`` what the code does wrong. ``command`` are the words of a command of the kit with :data:`TARGET` in
    the place of ``broken`` or ``mended``. ``causes`` are the kinds of cause, or of finding where no cause can be told,
    of which one has to be the one that most failed checks tell; they were written down before the kit was asked.
    ``real`` says that ``broken`` is the project's own code; else both are the smallest rebuild, in our own words.
    ``missed`` is why the kit does not find it, empty where it does, and ``otherwise`` why it tells another cause.
    """

    project: str
    number: int
    area: str
    had: str
    mended_in: str
    seen: str
    fault: str
    command: tuple[str, ...]
    broken: str
    mended: str
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
        """Where it is reported; a pull request is found there as well."""
        return f"https://github.com/{self.project}/issues/{self.number}"

    def words(self, target: str) -> tuple[str, ...]:
        """Return the command with a target in it."""
        return tuple(target if word == TARGET else word for word in self.command)
