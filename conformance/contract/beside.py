"""The ids of checks on operations and on blocks, which stand beside the contract. Nothing here imports torch."""

from __future__ import annotations

#: The first parts of the ids.
OPERATIONS, BLOCKS = "ops", "blocks"

#: The second parts: in B, and in I and W.
FULL, SPLIT = "full", "split"


def named_in(check: str, area: str) -> str | None:
    """Return the name in the id of a check of an area, ``area.full.name``; None for another check."""
    before, way, name = [*check.split(".", 2), "", ""][:3]
    return name if before == area and way in {FULL, SPLIT} and name else None
