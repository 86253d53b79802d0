"""Stores values by key within a number of bytes, so that a few large tensors do not fill the memory of a run."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import is_dataclass
from functools import partial
from types import MappingProxyType
from typing import Generic, TypeVar

from torch import Tensor

V = TypeVar("V")


class Bounded(Generic[V]):
    """Values by key; the oldest are freed when the tensors of all need more than ``most`` bytes."""

    def __init__(self, most: int) -> None:
        """Create an empty store."""
        self._most, self._bytes = most, 0
        self._values: dict[Hashable, tuple[V, int]] = {}

    def __len__(self) -> int:
        """Return the number of stored values."""
        return len(self._values)

    def get(self, key: Hashable) -> V | None:
        """Return a stored value, or None."""
        found = self._values.get(key)
        return None if found is None else found[0]

    def pop(self, key: Hashable) -> V | None:
        """Return a stored value and forget it; None if there is none."""
        found = self._values.pop(key, None)
        if found is None:
            return None
        self._bytes -= found[1]
        return found[0]

    def put(self, key: Hashable, value: V, *tensors: object) -> None:
        """Store a value whose tensors are in ``tensors``, or in itself; one that is too large is not stored."""
        self.pop(key)
        size = bytes_of(tensors or value)
        if size > self._most:
            return
        self._values[key] = value, size
        self._bytes += size
        while self._bytes > self._most:
            self.pop(next(iter(self._values)))


def bytes_of(value: object) -> int:
    """Return the bytes of the tensors in nested sequences, mappings and dataclasses; a shared one counts once."""
    sizes: dict[int, int] = {}
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one is None or isinstance(one, (str, int)):  # common, and quick
            continue
        if isinstance(one, Tensor):
            sizes[id(one)] = one.numel() * one.element_size()
        elif isinstance(one, (tuple, list)):
            waiting.extend(one)
        elif isinstance(one, (dict, MappingProxyType)):
            waiting.extend(one.values())
        elif is_dataclass(one):
            waiting.extend(map(partial(getattr, one), one.__dataclass_fields__))
    return sum(sizes.values())
