"""Operations of torch, each judged in a stage of its own, and the oracles that need no second device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradconform.contract.extra_ids import OPERATIONS, name_in_id, oracle_of
from gradconform.run.source import Source
from gradconform.user_input.option import Option, path_of

_ORACLES = "judge the device on each operation: layout, finite-differences, additive, edges, or all"


def _selecting(check: str) -> Mapping[str, Any] | None:
    operation, oracle = name_in_id(check, OPERATIONS), oracle_of(check)
    return None if operation is None else {"operation": (operation,), "oracle": () if oracle is None else (oracle,)}


SOURCE = Source(
    area=OPERATIONS,
    selecting=_selecting,
    has_sections=True,
    options=(
        Option(
            name="operation",
            metavar="NAME",
            default=(),
            kind="several",
            help="judge TARGET on single torch operations instead of the contract: a name, a glob, or all",
            selects=True,
            on_devices=("all", "judge these torch operations: names, globs, or all"),
        ),
        Option(name="oracle", metavar="NAME", default=(), kind="several", help=_ORACLES, on_devices=("all", _ORACLES)),
        Option(
            name="plan",
            metavar="FILE",
            unset="the user's cache",
            help="read measured operation samples from FILE and add new ones to it; for the shards of one run",
            changes="plan",
            check=path_of,
        ),
    ),
)
