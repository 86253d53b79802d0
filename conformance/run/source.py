"""A source of checks: what can be judged beside the contract, such as a user's stages, operations or known faults.

Each source is a folder of :mod:`gradconform.sources`. The folder's ``__init__`` describes it in a :class:`Source`, and
imports little, because every start reads it. Its module ``checks`` does the work and is imported when the source is
used; it has the functions of :class:`gradconform.run.selection.Checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gradconform.user_input.option import Option

#: The options with which a run has the check with an id; None if the id belongs to another source.
OptionsSelecting = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The description of a source.

    ``options`` are those of a run that it reads. ``selecting`` finds a check again by its id, if the id has enough for
    that. ``area`` is the first part of its checks' ids, if ``gradconform device`` runs them; that command runs the
    areas in the order of the sources, and ``last`` ones after all dtypes. ``command`` is the name of a command of its
    own, empty for a part of ``gradconform run``.
    """

    options: tuple[Option, ...]
    command: str = ""
    selecting: OptionsSelecting | None = None
    area: str = ""
    last: bool = False

    @property
    def by_name(self) -> dict[str, Option]:
        """The options by name."""
        return {option.name: option for option in self.options}
