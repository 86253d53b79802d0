"""The distribution of tests to workers: tests of a file with shared fixtures, or of one fault, run in one worker.

With xdist's own distribution, each worker would run a hundred faults of a training step.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_ROOT = Path(__file__).parents[1]


class Together(LoadScopeScheduling):
    """A scheduler that distributes single tests, but keeps tests that share work together; the longest are first."""

    def __init__(self, config: pytest.Config, log: Any, seconds: Mapping[str, float] = MappingProxyType({})) -> None:
        """Remember the seconds that some scopes take."""
        super().__init__(config, log)
        self._seconds = seconds

    def schedule(self) -> None:
        """Give each worker two units; it waits while it has one, which is all that xdist gives a replacement.

        No worker has a long unit left when the others are ready: these are next. xdist has put the largest first.
        """
        super().schedule()
        recorded = self.workqueue.keys() & self._seconds.keys()
        for scope in sorted(recorded, key=lambda scope: (self._seconds[scope], scope)):
            self.workqueue.move_to_end(scope, last=False)
        for node in self.nodes:
            self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test that a worker crashed in, and let others run the tests that it has not begun.

        xdist hands out the worker's finished units as well, and a worker that gets one waits forever.
        """
        units = self.assigned_work.pop(node)
        crashed = next((test for unit in units.values() for test, ended in unit.items() if not ended), None)
        if crashed is None:
            return None
        for scope, unit in units.items():
            left = {test: ended or test == crashed for test, ended in unit.items()}
            if not all(left.values()):
                self.workqueue[scope] = left
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker its next unit; one that has just crashed cannot take it, and :meth:`remove_node` finds it."""
        with suppress(OSError):  # xdist hears of the crash after it reads the worker's last results
            super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


#: Files whose tests read what the first of them makes, which takes seconds.
_OF_ONE_FILE = frozenset({"tests/fuzzed_files/test_found.py", "tests/packaging/test_architecture.py"})

#: Tests that judge the same fault by the checks that it names; the second reads the report of the first.
_OF_ONE_FAULT = (
    "tests/quality/test_causes.py::test_the_message_on_a_fault_names_its_cause",
    "tests/quality/test_faults.py::test_every_check_that_a_fault_names_finds_it",
)


#: Tests that run the whole contract in the same dtype; the second reads plain autograd's results of the first.
_OF_THE_CONTRACT = frozenset(
    {
        "tests/quality/test_references.py::test_known_right_targets_conform[reference-split-float32]",
        "tests/quality/test_torch_functions.py::test_scripts_explain_exactly_the_checks_that_fail_on_torch[float32]",
    }
)


def scope_of(nodeid: str) -> str:
    """Return the name of the tests that run in one worker with this one."""
    if nodeid in _OF_THE_CONTRACT:
        return "whole contract"
    test, _, parameters = nodeid.partition("[")
    if parameters and test in _OF_ONE_FAULT:
        return f"fault [{parameters}"
    file = nodeid.partition("::")[0]
    return file if file in _OF_ONE_FILE or shares(file) else nodeid


@cache
def shares(file: str) -> bool:
    """Return whether a test file, or its conftest, has a module-wide fixture."""
    path = _ROOT / file
    return any(
        'scope="module"' in one.read_text(encoding="utf-8")
        for one in (path, path.with_name("conftest.py"))
        if one.is_file()
    )
