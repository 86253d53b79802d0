"""The amount of detail that a terminal report shows."""

from __future__ import annotations

from dataclasses import dataclass

#: Causes shown with an example by default; the summary lists every cause.
_CAUSES = 6

#: Lines shown of a message without findings, such as a traceback.
_MESSAGE_LINES = 6


@dataclass(frozen=True, slots=True)
class Detail:
    """The level of detail.

    ``verbosity`` is the number of -v options minus the number of -q options. At 0, a failing run fits a screen. At 1,
    every cause has the ids of all its checks; at 2, also all findings of each check. At -1, each cause has one line; at
    -2, only the verdict is printed. ``failures`` is the number of failing checks to show per cause.
    """

    verbosity: int = 0
    failures: int = 1

    @property
    def verdict_alone(self) -> bool:
        """Whether only the verdict is printed."""
        return self.verbosity < -1

    @property
    def quiet(self) -> bool:
        """Whether each cause has one line and the text around the verdict is skipped."""
        return self.verbosity < 0

    @property
    def ids(self) -> bool:
        """Whether every check is named."""
        return self.verbosity > 0

    @property
    def everything(self) -> bool:
        """Whether all findings of each check are shown."""
        return self.verbosity > 1

    @property
    def causes(self) -> int | None:
        """Return how many causes have an example; None for all."""
        return None if self.ids else _CAUSES

    @property
    def message_lines(self) -> int | None:
        """Return how many lines of a message without findings are shown; None for all."""
        return None if self.ids else _MESSAGE_LINES


#: The default detail, and the full detail.
USUAL, ALL = Detail(), Detail(verbosity=2)
