"""Which options of a run a check beside the contract asks for by its id alone."""

from __future__ import annotations

from typing import Any

from gradconform.contract.beside import BLOCKS, OPERATIONS, named_in

#: What asks for none of them.
NONE: dict[str, Any] = {"operation": (), "block": (), "sizes": None}


def asked_by(check: str) -> dict[str, Any]:
    """Return the options without which a check on an operation or a block is not there; none for any other check."""
    operation, block = named_in(check, OPERATIONS), named_in(check, BLOCKS)
    if operation is not None:
        return {**NONE, "operation": (operation,)}
    if block is not None:
        name, _, _ = block.partition(".")
        return {**NONE, "block": (name,), "sizes": "full"}
    return {}
