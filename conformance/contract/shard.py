"""Shards: one part of a plan, for one job of a CI matrix or one of several machines."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from gradconform.exits import UsageError


class ShardError(UsageError):
    """What is given as a shard is none, or has nothing to run."""


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
        """Return the shard that ``text`` names, such as ``1/4``; raise :class:`ShardError` where it names none."""
        found = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            msg = f"expected I/N with I from 1 to N, such as 1/4 for the first of four shards; got {text!r}"
            raise ShardError(msg)
        return cls(int(found[1]), int(found[2]))

    def positions(self, alike: Sequence[Hashable]) -> tuple[int, ...]:
        """Return the positions in the plan that are this shard's, given what each item has in common with others.

        Items that are alike stay together, since they read the same run of a program; the sets of such items are dealt
        out in turn, the largest first.
        """
        sets: dict[Hashable, list[int]] = {}
        for position, key in enumerate(alike):
            sets.setdefault(key, []).append(position)
        dealt = sorted(sets.values(), key=len, reverse=True)[self.index - 1 :: self.count]
        return tuple(sorted(position for one in dealt for position in one))

    def record(self, positions: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
        """Return what a report says of the shard, as JSON values; ``names`` are those of the whole plan's items."""
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        return {
            "index": self.index,
            "count": self.count,
            "selected": len(names),
            "sha256": digest,
            "positions": list(positions),
        }
