"""When two runs on devices say the same of a check, though not every number in it can be the same bits."""

from __future__ import annotations

import re
from typing import Any

import pytest

#: The last bits of a product hang on where its operands lie in memory, and the peak of the memory on when the device's
#: thread lets go of a graph while torch's split is at its next pass: these are of one size, and not the same bits.
MEASURED = ("headroom", "error", "bound", "oracle_spread", "peak")
#: What follows from the last bits, and what plain autograd had at its peak, whose graphs that thread may hold longer.
FOLLOWS = ("bit_equal", "repeats_bit_equal", "plain_autograd", "undeferred")


def agrees(one: Any, other: Any) -> bool:
    """Tell whether two runs say the same of a check: every word, index, action and count, and numbers of one size."""
    if isinstance(one, dict) and isinstance(other, dict):
        return not differences(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(agrees, one, other))
    return bool(one == other)


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what two runs do not say alike of a check, by field; one that a run lacks is not said alike."""
    return {
        name: (one.get(name), other.get(name))
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not _same(name, one[name], other[name])
    }


def _same(name: str, one: Any, other: Any) -> bool:
    if name in FOLLOWS:
        return True
    if name in MEASURED and one is not None and other is not None:
        return bool(one == pytest.approx(other, rel=0.25, abs=1.0 if name == "headroom" else 1e-5))
    if isinstance(one, str) and isinstance(other, str):
        return _without_fractions(one) == _without_fractions(other)
    return agrees(one, other)


def _without_fractions(text: str) -> str:
    return re.sub(r"-?\d+(\.\d+(e[-+]\d+)?|e[-+]\d+)", "…", text)
