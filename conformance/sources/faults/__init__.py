"""Known faults, each to be found by a check that names it: they show whether a passing run means anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradconform.contract.extra_ids import FAULTS, NONE, name_in_id
from gradconform.run.source import Source
from gradconform.user_input.option import Option, names_of


def _selecting(check: str) -> Mapping[str, Any] | None:
    fault = name_in_id(check, FAULTS)
    return None if fault is None else {"fault": (fault,)}


def _faults(given: Any) -> tuple[str, ...]:
    """Return the names of faults; ``none`` alone means no faults."""
    names = names_of(given)
    return () if names == (NONE,) else names


SOURCE = Source(
    area=FAULTS,
    selecting=_selecting,
    last=True,
    options=(
        Option(
            name="fault",
            metavar="NAME",
            default=(),
            kind="several",
            help="check that known faults are found here, instead of the contract: a name, a glob, all, or none",
            check=_faults,
            selects=True,
            on_devices=(NONE, "check that these known faults are found: names, globs, all, or none"),
        ),
    ),
)
