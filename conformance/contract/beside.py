"""The ids of the checks that stand beside the contract: on operations, blocks, settings of torch and known faults.

Nothing here imports torch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from gradconform.naming import SelectionError, nearest

_T = TypeVar("_T")

#: The first parts of the ids.
OPERATIONS, BLOCKS, SETTINGS, FAULTS = "ops", "blocks", "settings", "faults"

#: How much is told of what is near, in letters: of a name that is like none, that is all there are.
_NEAR = 200

#: What names all operations, or all of the others.
ALL = "all"

#: What names no fault at all.
NONE = "none"

#: The second parts: in B, and in I and W; of faults, that they are found.
FULL, SPLIT, FOUND = "full", "split", "found"

#: The second parts of checks on operations that need no second device, each named as the oracle that judges it.
LAYOUT, FINITE_DIFFERENCES, ADDITIVE = ORACLES = ("layout", "finite-differences", "additive")


def named_in(check: str, area: str) -> str | None:
    """Return the name in the id of a check of an area, such as ``area.full.name``; None for another check."""
    before, way, name = [*check.split(".", 2), "", ""][:3]
    return name if before == area and way in {FULL, SPLIT, FOUND, *ORACLES} and name else None


def oracle_of(check: str) -> str | None:
    """Return the oracle in the id of a check on an operation, such as ``ops.layout.sin``; None for another check."""
    area, way, *name = check.split(".", 2)
    return way if area == OPERATIONS and way in ORACLES and name else None


def chosen(patterns: Sequence[str], known: Mapping[str, _T], none: str) -> list[_T]:
    """Return what ``patterns`` name, in the order of ``known``: names, globs, or ``all``.

    Raises :class:`~gradconform.naming.SelectionError` for a pattern that names nothing; ``none`` is the message, in
    which ``{}`` is the pattern.
    """
    for pattern in patterns:
        if pattern != ALL and not any(fnmatchcase(name, pattern) for name in known):
            near = textwrap.shorten(nearest(pattern, known), _NEAR, placeholder=" …")
            msg = f"{none.format(repr(pattern))}; nearest: {near}"
            raise SelectionError(msg)
    return [one for name, one in known.items() if any(p == ALL or fnmatchcase(name, p) for p in patterns)]
