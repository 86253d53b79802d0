"""Which tests one worker runs: those of a file whose tests share what is computed once for it.

Spread over the workers, as xdist does it, a hundred faults of a training step would be run by each of them.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

_ROOT = Path(__file__).parents[1]


class Together(LoadScopeScheduling):
    """Hands out one test at a time, but a file as a whole where its tests share; these come first."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if shares(file) else nodeid


@cache
def shares(file: str) -> bool:
    """Tell whether a file of tests, or the conftest beside it, has a fixture of the whole module."""
    path = _ROOT / file
    return any(
        'scope="module"' in one.read_text(encoding="utf-8")
        for one in (path, path.with_name("conftest.py"))
        if one.is_file()
    )
