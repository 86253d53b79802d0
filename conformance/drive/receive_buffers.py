"""Receive buffers of a caller: tensors of a finished micro-batch, filled again for the next one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradconform.devices.tensor_facts import without_repeats
from gradconform.trees import Tree, flattened, tensors


class ReceiveBuffers:
    """Trees of tensors to receive into. One micro-batch at a time uses each, and frees it at its end."""

    def __init__(self) -> None:
        self._lent: dict[int, Tree] = {}
        self._free: list[Tree] = []
        self._later: list[Tree] = []

    def received(self, mb: int, values: Tree) -> Tree:
        """Return the buffers that were freed last, filled with ``values``; ``values`` themselves if no buffers fit.

        A buffer has no ``.grad``, as torch's runtime clears it.
        """
        held = next((one for one in reversed(self._free) if _alike(one, values)), None)
        if held is not None:
            self._free = [one for one in self._free if one is not held]
            for buffer, value in zip(tensors(held), tensors(values), strict=True):
                fill(buffer, value)
                buffer.grad = None
        self._lent[mb] = values if held is None else held
        return self._lent[mb]

    def after(self, kind: str, mb: int) -> None:
        """Free the buffers that a micro-batch no longer needs: after B, or after the step of its W."""
        if kind in {"B", "W"} and mb in self._lent:
            (self._later if kind == "W" else self._free).append(self._lent.pop(mb))
        elif kind == "finish":
            self._free += self._later
            self._later.clear()


def _alike(one: Tree, other: Tree) -> bool:
    """Return whether two trees have tensors of the same shapes, dtypes and strides in the same places."""
    pairs = list(zip(flattened(one), flattened(other), strict=False))
    return len(flattened(one)) == len(flattened(other)) and all(_form(a) == _form(b) for a, b in pairs)


def _form(leaf: Any) -> Any:
    return (leaf.shape, leaf.dtype, leaf.stride()) if isinstance(leaf, Tensor) else None


def fill(buffer: Tensor, values: Tensor) -> None:
    """Write ``values`` into a tensor of the same shape and strides; elements at one address are written once."""
    with torch.no_grad():
        without_repeats(buffer.detach()).copy_(without_repeats(values.detach(), like=buffer))


def tracked(grads: Tree) -> Tree:
    """Make every gradient require a gradient itself; return the tree."""
    for grad in tensors(grads):
        grad.requires_grad_()
    return grads
