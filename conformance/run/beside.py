"""Which options of a run a check beside the contract asks for by its id alone."""

from __future__ import annotations

from typing import Any

from gradconform.contract.beside import BLOCKS, OPERATIONS, named_in

#: What asks for none of them.
_NONE: dict[str, Any] = {"operation": (), "block": (), "sizes": None, "with_contract": None}


def asked_by(check: str) -> dict[str, Any]:
    """Return the options with which a run has a check, and none of the operations and blocks that it stood beside."""
    operation, block = named_in(check, OPERATIONS), named_in(check, BLOCKS)
    if operation is not None:
        return {**_NONE, "operation": (operation,)}
    if block is not None:
        name, _, _ = block.partition(".")
        return {**_NONE, "block": (name,), "sizes": "full"}
    return _NONE
