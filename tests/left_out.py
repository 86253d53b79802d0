"""The long tests that a session leaves out: they are counted, in workers too, and the summary says how to run them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


class LeftOut:
    """Removes tests from a session, each with a reason; all workers remove the same."""

    def __init__(self, config: pytest.Config) -> None:
        """Count nothing yet."""
        self._config = config
        self._reasons = Counter[str]()
        self._deselected = 0

    def remove(self, items: list[pytest.Item], reason_of: Callable[[pytest.Item], str | None]) -> None:
        """Remove the tests that have a reason to be left out."""
        reasons = [reason_of(item) for item in items]
        self._reasons += Counter(reason for reason in reasons if reason is not None)
        removed = [item for item, reason in zip(items, reasons, strict=True) if reason is not None]
        items[:] = [item for item, reason in zip(items, reasons, strict=True) if reason is None]
        self._config.hook.pytest_deselected(items=removed)

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count tests that this or another plugin removes."""
        self._deselected += len(items)

    def pytest_sessionfinish(self) -> None:
        """Send the numbers to the process that prints them, if it is another one."""
        sent: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if sent is not None:
            sent["left_out"] = dict(self._reasons), self._deselected

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the numbers of the first worker that ends; xdist itself forgets what its workers deselect."""
        reasons, deselected = getattr(node, "workeroutput", {}).get("left_out", ({}, 0))
        if deselected and not self._deselected:
            self._reasons.update(reasons)
            self._config.hook.pytest_deselected(items=[SimpleNamespace()] * deselected)  # only counted

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print how many tests were left out for each reason."""
        if self._reasons:
            terminalreporter.section("long tests")
        for reason, count in sorted(self._reasons.items()):
            terminalreporter.line(f"{count:,} left out: {reason}")
