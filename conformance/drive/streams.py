"""Checks whether gradients are available on the caller's stream, or are still being written on another one.

The next operation of an engine, such as a send, runs on its current stream, and does not wait for the whole device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from gradconform.results import Sort
from gradconform.trees import equal

from .watches import dense, on_cpu

#: The copied gradients, by the names that findings have.
Named = tuple[Sort, str]


@runtime_checkable
class SeesStreams(Protocol):
    """A log that says whether the last call ran work on another stream than the caller's."""

    other_streams: bool


class CallerReads:
    """Copies of gradients, made on the caller's stream right after a call has returned."""

    def __init__(self) -> None:
        self._read: list[tuple[Named, Tensor, Tensor]] = []

    def read(self, sort: Sort, named: Iterable[tuple[str, object]]) -> None:
        """Copy the dense tensors of a device among ``named``."""
        with torch.no_grad():
            for name, value in named:
                if isinstance(value, Tensor) and not value.is_cpu and value.layout is torch.strided:
                    own = value.detach()
                    self._read.append(((sort, name), own, own.clone()))

    def late(self) -> tuple[Named, ...]:
        """Return the gradients that were late, after waiting for the device; further reads are not possible."""
        read, self._read = self._read, []
        suspects = _unequal([(own, copy) for _, own, copy in read])
        # NaN is unequal to itself: pairs that seem to differ are compared on the CPU.
        return tuple(
            named
            for (named, own, copy), differs in zip(read, suspects, strict=True)
            if differs and not equal(dense(on_cpu(own)), dense(on_cpu(copy))) and _is_copied_right(own)
        )


def _is_copied_right(own: Tensor) -> bool:
    """Return whether a copy has the tensor's values once the device has waited, so that an earlier one was late."""
    return equal(dense(on_cpu(own)), dense(on_cpu(own.clone())))


def _unequal(pairs: list[tuple[Tensor, Tensor]]) -> list[bool]:
    """Return which pairs differ, read from the device at once; all pairs if it cannot compare."""
    if not pairs:
        return []
    try:
        return [bool(one) for one in torch.stack([(own != copy).any() for own, copy in pairs]).tolist()]
    except (RuntimeError, NotImplementedError):
        return [True] * len(pairs)
