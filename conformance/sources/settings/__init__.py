"""Settings of torch that allow less precision or another kernel, each on some stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradconform.contract.extra_ids import SETTINGS, name_in_id
from gradconform.run.source import Source
from gradconform.user_input.option import Option


def _selecting(check: str) -> Mapping[str, Any] | None:
    setting = name_in_id(check, SETTINGS)
    return None if setting is None else {"setting": (setting.partition(".")[0],)}


SOURCE = Source(
    area=SETTINGS,
    selecting=_selecting,
    options=(
        Option(
            name="setting",
            metavar="NAME",
            default=(),
            kind="several",
            help="judge TARGET under torch settings instead of the contract, such as autocast-bfloat16 or "
            "deterministic: a name, a glob, or all",
            selects=True,
            on_devices=("all", "judge some stages under these torch settings: names, globs, or all"),
        ),
    ),
)
