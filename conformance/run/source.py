"""A source of checks: what can be judged beside the contract, such as a user's stages, operations or known faults.

Each source is a folder of :mod:`gradconform.sources`. The folder's ``__init__`` describes it in a :class:`Source`, and
imports little, because every start reads it. Its module ``checks`` does the work and is imported when the source is
used; it has the functions of :class:`gradconform.run.selection.Checks`. If it adds to a report, its module ``sections``
has a function of that name, which takes the report and yields each :class:`SourceSection`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradconform.user_input.option import Option, OptionValues

#: The options with which a run has the check with an id; None if the id belongs to another source.
OptionsSelecting = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionItem:
    """One line of a report's section, with its number of results if that is shown."""

    text: str
    number: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSection:
    """A topic that a source adds to a report; every layout shows it if it has items."""

    heading: str
    items: tuple[SectionItem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The description of a source.

    ``options`` are those of a run that it reads. ``selecting`` finds a check again by its id, if the id has enough for
    that. ``area`` is the first part of its checks' ids, if ``gradconform device`` runs them; that command runs the
    areas in the order of the sources, and ``last`` ones after all dtypes. ``has_sections`` says that it adds sections
    to a report. ``refuse`` raises :class:`~gradconform.user_input.values.SelectionError` for values that are wrong in
    any case, before torch is imported.
    """

    options: tuple[Option, ...]
    selecting: OptionsSelecting | None = None
    area: str = ""
    last: bool = False
    has_sections: bool = False
    refuse: Callable[[OptionValues], None] = lambda _: None

    @property
    def by_name(self) -> dict[str, Option]:
        """The options by name."""
        return {option.name: option for option in self.options}


def no_areas(_: str) -> str:
    """Return no area: the results of such checks are not summed up by area."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSource(Source):
    """The description of a source with a command of its own, which starts no worker of the kit.

    ``command`` is its name, ``help`` its help as a docstring, and ``examples`` follow the options there. ``values`` is
    the class of the options. ``area_of`` returns the area of a check, whose results are summed up in a line.
    ``has_catalogue`` says that its module ``checks`` has a function ``catalogue``: it yields each check that has the
    same id in every run, with the words of the options that it needs.
    """

    command: str
    help: str
    values: type[OptionValues]
    examples: str = ""
    area_of: Callable[[str], str] = no_areas
    has_catalogue: bool = False
