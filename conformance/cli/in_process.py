"""A run in the command's own process: what ends the process ends the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gradconform.cli.current_folder import current_folder_first

if TYPE_CHECKING:
    from gradconform.execution import OnResult, OnStart
    from gradconform.records import Place


class InProcess:
    """A run that is ready to begin, in this process; ``header`` says what it is."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Make the session that ``options`` describe."""
        # Before the current folder is looked into, so that nothing in it can stand for torch.
        from gradconform.session import Session  # noqa: PLC0415 (it imports torch, which other processes do elsewhere)

        self._folder = contextlib.ExitStack()
        with contextlib.ExitStack() as opening:
            opening.enter_context(current_folder_first())
            self._session = Session(**options)
            self._folder = opening.pop_all()
        self.header = self._session.header(options)

    def run(self, on_result: OnResult, *, on_start: OnStart, places: Iterable[Place]) -> None:
        """Run the items at ``places``."""
        self._session.run(on_result, on_start=on_start, places=places)

    def close(self) -> None:
        """Look into the current folder no more."""
        self._folder.close()
