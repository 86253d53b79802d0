"""Compares the results of two runs on devices, whose numbers may differ in some bits."""

from __future__ import annotations

import re
from typing import Any

import pytest

#: Numbers of similar size with different bits. The last bits of a product depend on the addresses of its operands. The
#: peak of memory depends on when the device's thread frees a graph during the next pass of torch's split.
MEASURED = ("headroom", "error", "bound", "oracle_spread", "peak")
#: Values that depend on the last bits, and plain autograd's peak, because that thread may keep its graphs longer.
FOLLOWS = ("bit_equal", "repeats_bit_equal", "plain_autograd", "undeferred")


def agrees(one: Any, other: Any) -> bool:
    """Return whether two runs agree on a check: same words, indices, actions and counts, and similar numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return not differences(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(agrees, one, other))
    return bool(one == other)


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two runs differ on a check; a missing field differs."""
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
