"""Blocks of models at increasing sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradconform.contract.extra_ids import BLOCKS, name_in_id
from gradconform.run.source import Source
from gradconform.user_input.option import Option
from gradconform.user_input.values import sizes_named


def _selecting(check: str) -> Mapping[str, Any] | None:
    block = name_in_id(check, BLOCKS)
    return None if block is None else {"block": (block.partition(".")[0],), "sizes": "full"}


SOURCE = Source(
    area=BLOCKS,
    selecting=_selecting,
    options=(
        Option(
            name="block",
            metavar="NAME",
            default=(),
            kind="several",
            help="judge TARGET on model blocks instead of the contract: a name, a glob, or all; --sizes sets their "
            "size",
            selects=True,
            on_devices=("all", "judge these model blocks: names, globs, or all; --sizes sets their size"),
        ),
        Option(
            name="sizes",
            metavar="SIZES",
            default="small",
            help="try blocks up to this size: small (32K values), large (1M) or full (2G, if memory allows)",
            check=sizes_named,
        ),
    ),
)
