"""Measures the terms of a gradient's sum: if they cancel, rounding is much larger than the gradient itself.

A softmax under equal output gradients gives 0, and so does the bias before a normalisation: the result is the rounding
of cancelling terms, and scales with them. Their size is found as in Monte Carlo arithmetic (Parker, Pierce and Eggert,
*Monte Carlo Arithmetic*, Computing in Science & Engineering 2, 2000). In float64 each gradient that reaches a node of
the graph is changed by a known part of itself, each element up or down. The resulting change of the final gradients,
divided by that part, is a sum of terms that no longer cancel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradconform.reference.recomputed import Root, nodes_behind

#: The part of itself by which a gradient is changed: far above the rounding of float64, and its square is negligible.
_PART = 2.0**-20


class Shaking:
    """A backward in which every gradient that reaches a node is changed by a known part of itself."""

    def __init__(self) -> None:
        """Draw which elements are changed up and which down, the same ones every time."""
        self._random = torch.Generator().manual_seed(0)
        self._part = _PART

    def begin(self, roots: Sequence[Root]) -> None:
        """Add a hook before each node of the graph behind ``roots``; it lives as long as the graph does."""
        hung = 0
        for node in nodes_behind(roots):
            if node.next_functions:  # a leaf receives the gradient itself
                node.register_prehook(self._changed)
                hung += 1
        self._part = _PART * math.sqrt(max(1, hung))

    def terms(self, shaken: Tensor | None, still: Tensor | None) -> Tensor | None:
        """Return, element by element, the size of the terms that a gradient is the sum of; None without a gradient.

        ``still`` is the unchanged gradient, ``shaken`` the one of this backward. Changes at ``n`` nodes add up to the
        square root of ``n`` times the change at one node, so the result is divided by that.
        """
        if shaken is None or still is None:
            return None
        return (_dense(shaken) - _dense(still)).abs() / self._part

    def _changed(self, grads: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return tuple(grad if grad is None else self._up_or_down(grad) for grad in grads)

    def _up_or_down(self, grad: Tensor) -> Tensor:
        if grad.layout != torch.strided or not (grad.is_floating_point() or grad.is_complex()):
            return grad
        signs = torch.randint(0, 2, grad.shape, generator=self._random, dtype=torch.int8) * 2 - 1
        return grad * (1.0 + _PART * signs.to(grad.dtype))


def _dense(grad: Tensor) -> Tensor:
    return grad.to_dense() if grad.layout != torch.strided else grad
