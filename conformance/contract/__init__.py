"""The contract: all checks of version 1.0, one module per area."""

from dataclasses import replace

from gradconform.check import Check, registered
from gradconform.contract import (
    accumulate,
    full,
    grad_tuple,
    hooks,
    lifetime,
    misuse,
    property,  # noqa: A004 (an area)
    repeat,
    schedule,
    split,
    state,
)
from gradconform.contract.quick import QUICK_CHECKS, QUICK_STAGES

__all__ = [
    "CHECKS", "accumulate", "full", "grad_tuple", "hooks", "lifetime", "misuse", "property", "repeat", "schedule",
    "split", "state",
]  # fmt: skip


def _with_quick(checks: dict[str, Check]) -> dict[str, Check]:
    """Return the checks with those of profile ``quick`` marked; raise ``KeyError`` for an id that does not exist."""
    listed = {*QUICK_CHECKS, *(f"{way}.gradients.{name}" for way in ("full", "split") for name in QUICK_STAGES)}
    losses = {f"{way}.loss.{name}" for way in ("full", "split") for name in QUICK_STAGES}
    unknown = sorted(listed - set(checks))
    if unknown:
        msg = f"profile quick lists checks that do not exist: {unknown}"
        raise KeyError(msg)
    return {i: replace(check, profile="quick") if i in listed | losses else check for i, check in checks.items()}


#: Every check of the contract by id, sorted.
CHECKS: dict[str, Check] = _with_quick(registered())
