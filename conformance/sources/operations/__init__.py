"""Operations of torch, each judged in a stage of its own, and the oracles that need no second device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradconform.contract.extra_ids import OPERATIONS, chosen, name_in_id, oracle_of
from gradconform.run.source import Source
from gradconform.torch_releases.names import installed
from gradconform.user_input.option import Option, OptionValues, path_of

#: The release of torch, and the names of the operations that it lists: importing that list takes seconds.
NAMES = Path(__file__).with_name("names.txt")

_ORACLES = "judge the device on each operation: layout, finite-differences, additive, alone, edges, or all"


def _selecting(check: str) -> Mapping[str, Any] | None:
    operation, oracle = name_in_id(check, OPERATIONS), oracle_of(check)
    return None if operation is None else {"operation": (operation,), "oracle": () if oracle is None else (oracle,)}


def unlisted(operation: str = "{}") -> str:
    """Return the message for an operation that torch does not list, or a template of it."""
    return f"torch {installed()} lists no operation {operation}"


def _refuse_unlisted(options: OptionValues) -> None:
    """Refuse a name at once if the installed release is that of :data:`NAMES`."""
    release, *names = NAMES.read_text(encoding="utf-8").splitlines() if options.operation else [""]
    if release and f"torch {installed()}".startswith(f"{release}."):
        chosen(options.operation, dict.fromkeys(names), unlisted())


SOURCE = Source(
    area=OPERATIONS,
    selecting=_selecting,
    refuse=_refuse_unlisted,
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
