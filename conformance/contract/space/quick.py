"""The rows of profile ``quick``: few rows that together have a non-default value of every dimension."""

from __future__ import annotations

from collections.abc import Mapping

from .checks import ROWS
from .dimensions import DIMENSIONS

#: Excluded values: slow ones, ones that hide the rest of a row, and ones whose claim many targets lack. Those targets
#: would have too few rows for a verdict.
_LEFT_OUT = {
    value.word
    for some in DIMENSIONS.values()
    for one in some
    for value in one.values
    if value.hides or "nested_output" in value.claims
} | {
    "past-64-mb", "past-32768-elements", "65535-elements", "past-65536-elements", "none-first", "graded-gain", "deep",
    "many-parameters", "checkpoint", "three-steps", "zeros", "no-elements",
}  # fmt: skip


def quick_rows() -> list[str]:
    """Return the ids: in each way the fewest that a greedy choice finds, those with most dimensions first."""
    return [
        check for way in DIMENSIONS for check in _chosen({c: row for c, (of, row) in ROWS.items() if of == way}, way)
    ]


def _chosen(rows: Mapping[str, Mapping[str, str]], way: str) -> list[str]:
    plain = {one.name: one.values[0].word for one in DIMENSIONS[way]}
    special = {
        check: {name for name, word in row.items() if word != plain[name]}
        for check, row in rows.items()
        if _LEFT_OUT.isdisjoint(row.values())
    }
    left = set().union(*special.values())
    chosen: list[str] = []
    while left:
        chosen.append(max(special, key=lambda check: len(left & special[check])))
        left -= special[chosen[-1]]
    return chosen
