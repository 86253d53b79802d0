"""The distribution of tests to workers: tests of a file with shared fixtures run in one worker.

With xdist's own distribution, each worker would run a hundred faults of a training step.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

_ROOT = Path(__file__).parents[1]


class Together(LoadScopeScheduling):
    """A scheduler that distributes single tests, but whole files with shared fixtures; these are first."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if shares(file) else nodeid


@cache
def shares(file: str) -> bool:
    """Return whether a test file, or its conftest, has a module-wide fixture."""
    path = _ROOT / file
    return any(
        'scope="module"' in one.read_text(encoding="utf-8")
        for one in (path, path.with_name("conftest.py"))
        if one.is_file()
    )
