"""How much of a report is told on a terminal."""

from __future__ import annotations

from dataclasses import dataclass

#: So many causes are told with an example where nobody asks for more; every one stands in the summary.
_CAUSES = 6

#: So many lines of a message without findings, such as a traceback, are shown.
_MESSAGE_LINES = 6


@dataclass(frozen=True, slots=True)
class Detail:
    """How much is told.

    ``verbosity`` is how often -v was given less how often -q was: at 0 a failing run fits a screen, at 1 every cause
    is told with the ids of all its checks, at 2 with all that each of them saw; at -1 causes are told in one line each,
    at -2 there is the verdict alone. ``failures`` is how many failing checks of each cause are shown.
    """

    verbosity: int = 0
    failures: int = 1

    @property
    def verdict_alone(self) -> bool:
        """Whether nothing but the verdict is told."""
        return self.verbosity < -1

    @property
    def quiet(self) -> bool:
        """Whether causes have one line each, and what is around the verdict is left out."""
        return self.verbosity < 0

    @property
    def ids(self) -> bool:
        """Whether every check is named."""
        return self.verbosity > 0

    @property
    def everything(self) -> bool:
        """Whether all that each check saw is shown."""
        return self.verbosity > 1

    @property
    def causes(self) -> int | None:
        """How many causes are told with an example; None for all."""
        return None if self.ids else _CAUSES

    @property
    def message_lines(self) -> int | None:
        """How many lines are shown of a message that has no findings; None for all."""
        return None if self.ids else _MESSAGE_LINES


#: What a run tells where nobody says otherwise, and all that there is.
USUAL, ALL = Detail(), Detail(verbosity=2)
