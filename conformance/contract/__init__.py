"""The contract: all checks of version 1.0, one module per area."""

from gradconform.check import Check, registered
from gradconform.contract import accumulate, full, grad_tuple, hooks, lifetime, misuse, repeat, split, state

__all__ = [
    "CHECKS", "accumulate", "full", "grad_tuple", "hooks", "lifetime", "misuse", "repeat", "split", "state",
]  # fmt: skip

#: Every check of the contract by id, sorted.
CHECKS: dict[str, Check] = registered()
