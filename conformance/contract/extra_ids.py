"""The ids of the checks outside the contract: on operations, blocks, settings of torch and known faults.

Nothing here imports torch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from gradconform.user_input.values import SelectionError, nearest

_T = TypeVar("_T")

#: The first parts of the ids.
OPERATIONS, BLOCKS, SETTINGS, FAULTS = "ops", "blocks", "settings", "faults"

#: The beginning of the ids of checks on a user's schedules.
ON_SCHEDULES = "schedule.file."

#: The first part of the ids of checks on a user's own stage.
STAGES = "stage"

#: The most letters of a list of similar names in a message; if no name is similar, all names are listed.
_NEAR = 200

#: The word for all operations, or all names of the other areas.
ALL = "all"

#: The word for no fault at all.
NONE = "none"

#: The second parts of the ids: in B, in I and W, and, for faults, that they are found.
FULL, SPLIT, FOUND = "full", "split", "found"

#: The second parts of checks of a device on operations, each named after its oracle. The last two compare it with the
#: CPU; the others need no second device.
LAYOUT, FINITE_DIFFERENCES, ADDITIVE, ALONE, EDGES = ORACLES = (
    "layout",
    "finite-differences",
    "additive",
    "alone",
    "edges",
)


def is_on_named_stage(check: str) -> bool:
    """Return whether the id is of a check on a user's own stage."""
    return check.startswith(f"{STAGES}.")


def name_in_id(check: str, area: str) -> str | None:
    """Return the name in the id of a check of an area, such as ``area.full.name``; None for another check."""
    before, way, name = [*check.split(".", 2), "", ""][:3]
    return name if before == area and way in {FULL, SPLIT, FOUND, *ORACLES} and name else None


def oracle_of(check: str) -> str | None:
    """Return the oracle in the id of a check on an operation, such as ``ops.layout.sin``; None for another check."""
    area, way, name = [*check.split(".", 2), "", ""][:3]
    return way if area == OPERATIONS and way in ORACLES and name else None


def chosen(patterns: Sequence[str], known: Mapping[str, _T], none: str) -> list[_T]:
    """Return the entries that ``patterns`` name, in the order of ``known``: names, globs, or ``all``.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a pattern that names nothing; ``none`` is the
    message, in which ``{}`` is the pattern.
    """
    for pattern in patterns:
        if pattern != ALL and not any(fnmatchcase(name, pattern) for name in known):
            near = textwrap.shorten(nearest(pattern, known), _NEAR, placeholder=" …")
            msg = f"{none.format(repr(pattern))}; nearest: {near}"
            raise SelectionError(msg)
    return [one for name, one in known.items() if any(p == ALL or fnmatchcase(name, p) for p in patterns)]
