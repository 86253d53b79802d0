"""Linears that defer their weight gradient, as zero-bubble pipelines swap them into a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn


class WeightGradStore:
    """Stores the functions that compute the weight gradients of swapped Linears."""

    def __init__(self) -> None:
        """Create an empty store."""
        self._left: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def leave(self, weight: Tensor, gradient: Callable[[], Tensor]) -> None:
        """Store ``gradient`` of ``weight`` for the next :meth:`take`."""
        self._left.append((weight, gradient))

    def take(self) -> Callable[[], None]:
        """Return a function that accumulates all weight gradients stored since the last call."""
        taken, self._left = self._left, []

        def accumulate() -> None:
            sums: dict[Tensor, Tensor] = {}
            for weight, gradient in taken:
                sums[weight] = sums[weight] + gradient() if weight in sums else gradient()
            for weight, total in sums.items():
                if weight.requires_grad:
                    # Through the weight's own node, so that its hooks fire, once, when its gradient is available.
                    with torch.enable_grad():  # the caller may be in a context that records none
                        root = weight.expand_as(weight)
                    torch.autograd.backward(root, total)

        return accumulate


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the outputs of a Linear for a Function to return: not as a view, which no later layer could write to."""
    outputs = torch.nn.functional.linear(x, weight, bias)
    return outputs if x.dim() == 2 else outputs.clone()  # noqa: PLR2004 (rows: torch takes others as a view of rows)


class _Linear(torch.autograd.Function):
    """A Linear whose weight is a plain object for autograd, which therefore computes no gradient of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, anchor: Tensor, linear: DeferredLinear) -> Tensor:
        """Return the output, and save the values that the gradients need."""
        del anchor
        ctx.save_for_backward(x)
        ctx.linear = linear
        return product(x, linear.weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input and bias; store the weight's."""
        (saved,), weight = ctx.saved_tensors, ctx.linear.weight
        x: Tensor = saved.detach()  # the stored function must not hold the graph before this layer
        rows = grad.reshape(-1, grad.shape[-1])
        if weight.requires_grad:
            kept = rows.clone()  # the output gradient may be overwritten by a receive before the weight's turn
            ctx.linear.store.leave(weight, lambda: kept.T @ x.reshape(len(kept), x.shape[-1]).conj())
        grad_x = grad @ weight.detach().conj() if ctx.needs_input_grad[0] else None
        return grad_x, rows.sum(0) if ctx.needs_input_grad[1] else None, None, None


class DeferredLinear(nn.Linear):
    """A Linear that defers to ``store``, made by ``swap(stage, nn.Linear, DeferredLinear, store=store)``."""

    store: WeightGradStore

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
        """Return the product, as nn.Linear does."""
        # Creates a graph if neither input nor bias needs a gradient, but the weight does.
        anchor = torch.empty(0, requires_grad=self.weight.requires_grad)
        result: Any = _Linear.apply(input, self.bias, anchor, self)  # type: ignore[no-untyped-call] # torch's
        return cast("Tensor", result)
