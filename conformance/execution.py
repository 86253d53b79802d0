"""A run as the command sees it: its header, and a way to run what has no result yet, in this process or in others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from gradconform.records import Header, Place
from gradconform.results import Result

OnResult = Callable[[Result], None]
#: Is told of an item as it begins, with the level and the requirement that its result will have.
OnStart = Callable[[Place, str, str], None]


class Execution(Protocol):
    """A run that is ready to begin."""

    header: Header

    def run(self, on_result: OnResult, *, on_start: OnStart, places: Iterable[Place]) -> None:
        """Run the items at ``places``."""

    def close(self) -> None:
        """Let go of what was made ready."""
