"""Shards: one part of a plan, for one job of a CI matrix or one of several machines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from gradconform.exits import UsageError


class ShardError(UsageError):
    """The text is no shard, or the shard has nothing to run."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard ``index`` of ``count``, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that ``text`` names, such as ``1/4``; raise :class:`ShardError` if it names none."""
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            msg = f"expected I/N with I from 1 to N, such as 1/4 for the first of four shards; got {text!r}"
            raise ShardError(msg)
        return cls(int(found[1]), int(found[2]))

    def positions(self, alike: Sequence[Hashable]) -> tuple[int, ...]:
        """Return this shard's positions in the plan, given a key for each item.

        Items with equal keys stay together, since they read the same run of a program. The sets of such items are
        distributed in turn, the largest first.
        """
        sets: dict[Hashable, list[int]] = {}
        for position, key in enumerate(alike):
            sets.setdefault(key, []).append(position)
        dealt = sorted(sets.values(), key=len, reverse=True)[self.index - 1 :: self.count]
        return tuple(sorted(position for one in dealt for position in one))

    def record(self, positions: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
        """Return the report's entry on the shard as JSON values; ``names`` are those of the whole plan's items."""
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        return {
            "index": self.index,
            "count": self.count,
            "selected": len(names),
            "sha256": digest,
            "positions": list(positions),
        }
