"""Linears whose weight gradient is left for later, as zero-bubble pipelines swap them into a stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn


class WeightGradStore:
    """Where the backward of a swapped Linear leaves the function that computes its weight's gradient."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._left: list[tuple[Tensor, Callable[[], Tensor]]] = []

    def leave(self, weight: Tensor, gradient: Callable[[], Tensor]) -> None:
        """Keep ``gradient`` of ``weight`` for the next :meth:`take`."""
        self._left.append((weight, gradient))

    def take(self) -> Callable[[], None]:
        """Return what accumulates all weight gradients that were left since the last time."""
        taken, self._left = self._left, []

        def accumulate() -> None:
            sums: dict[Tensor, Tensor] = {}
            for weight, gradient in taken:
                sums[weight] = sums[weight] + gradient() if weight in sums else gradient()
            for weight, total in sums.items():
                if weight.requires_grad:
                    # Through the weight's own node, so that its hooks fire, once, when its gradient is there.
                    with torch.enable_grad():  # whoever calls may record none
                        root = weight.expand_as(weight)
                    torch.autograd.backward(root, total)

        return accumulate


class _Linear(torch.autograd.Function):
    """Linear that knows its weight as an object alone, so that autograd asks for no gradient of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, anchor: Tensor, linear: DeferredLinear) -> Tensor:
        """Keep what the gradients need."""
        del anchor
        ctx.save_for_backward(x)
        ctx.linear = linear
        return torch.nn.functional.linear(x, linear.weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input and bias; leave the weight's."""
        (saved,), weight = ctx.saved_tensors, ctx.linear.weight
        x: Tensor = saved.detach()  # what is left must not hold the graph before this layer
        rows = grad.reshape(-1, grad.shape[-1])
        if weight.requires_grad:
            kept = rows.clone()  # the output gradient may be received over before the weight's turn
            ctx.linear.store.leave(weight, lambda: kept.T @ x.reshape(len(kept), x.shape[-1]).conj())
        grad_x = grad @ weight.detach().conj() if ctx.needs_input_grad[0] else None
        return grad_x, rows.sum(0) if ctx.needs_input_grad[1] else None, None, None


class DeferredLinear(nn.Linear):
    """Leaves to ``store``: what ``swap(stage, nn.Linear, DeferredLinear, store=store)`` makes of every Linear."""

    store: WeightGradStore

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
        """Multiply as nn.Linear does."""
        # Makes a graph where neither input nor bias needs a gradient, but the weight does.
        anchor = torch.empty(0, requires_grad=self.weight.requires_grad)
        result: Any = _Linear.apply(input, self.bias, anchor, self)  # type: ignore[no-untyped-call] # torch's
        return cast("Tensor", result)
