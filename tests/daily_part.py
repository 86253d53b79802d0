"""A part of many long tests for each day, so that all of them run in some days. A failure says how to repeat it."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from gradconform.contract.shard import Shard


def part_of_today(parts: int, variable: str) -> Shard:
    """Return the part of today; the environment ``variable`` names another one, such as 3/20."""
    today = datetime.now(tz=timezone.utc).date().toordinal() % parts + 1
    return Shard.parse(os.environ.get(variable, f"{today}/{parts}"))
