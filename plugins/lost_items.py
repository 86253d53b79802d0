"""Checks that were lost with their worker: pytest-xdist says that a worker crashed, and the report what it was at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


class LostItems:
    """Keeps, by node id, what a worker of pytest-xdist has said of a check as it began."""

    def __init__(self) -> None:
        self._begun: dict[str, Mapping[str, Any]] = {}

    def note(self, report: pytest.TestReport) -> None:
        """Note a check that begins, and forget one that has ended."""
        begun = getattr(report, "gradconform_begun", None)
        if begun is not None:
            self._begun[report.nodeid] = begun
        elif report.when == "call":
            self._begun.pop(report.nodeid, None)

    def payload(self, nodeid: str) -> dict[str, Any] | None:
        """Return the result of a check whose worker crashed, as the worker would have sent it; None for other tests."""
        begun = self._begun.pop(nodeid, None)
        if begun is None:
            return None
        check = begun["result"]["check"]
        message = (
            "the worker process of pytest-xdist ended in the middle of the check; "
            f"gradconform run --checks {check} tells whether plain autograd ends it as well, and where"
        )
        told = {"status": "error", "kind": "environment", "message": message}
        return {**begun, "result": {**begun["result"], **told}}
