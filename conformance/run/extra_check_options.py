"""The run options that select a single check outside the contract by its id."""

from __future__ import annotations

from typing import Any

from gradconform.contract.extra_ids import BLOCKS, FAULTS, OPERATIONS, SETTINGS, named_in, oracle_of

#: The options that select no such check.
_NONE: dict[str, Any] = {
    "operation": (), "oracle": (), "block": (), "sizes": None, "setting": (), "fault": (), "with_contract": None,
}  # fmt: skip


def options_selecting(check: str) -> dict[str, Any]:
    """Return the options with which a run has this check, and no other check outside the contract."""
    operation, block = named_in(check, OPERATIONS), named_in(check, BLOCKS)
    setting, fault = named_in(check, SETTINGS), named_in(check, FAULTS)
    if operation is not None:
        oracle = oracle_of(check)
        return {**_NONE, "operation": (operation,), "oracle": () if oracle is None else (oracle,)}
    if block is not None:
        name, _, _ = block.partition(".")
        return {**_NONE, "block": (name,), "sizes": "full"}
    if setting is not None:
        name, _, _ = setting.partition(".")
        return {**_NONE, "setting": (name,)}
    if fault is not None:
        return {**_NONE, "fault": (fault,)}
    return _NONE
