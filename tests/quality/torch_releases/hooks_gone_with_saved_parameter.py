"""Under checkpointing, a hook on a parameter that a custom function saves is removed before it fires.

What checkpointing, or any hook on saved tensors, unpacks in place of a parameter is another tensor with the parameter's
accumulator: when it goes, in the function's own backward, it takes the hooks along.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Product(torch.autograd.Function):
    """A product."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of both factors."""
        x, y = ctx.saved_tensors
        return grads[0] * y, grads[0] * x


weight, x = nn.Parameter(torch.randn(7, 5)), torch.randn(7, 5, requires_grad=True)
called: list[str] = []
weight.register_hook(lambda _: called.append("hook"))
output = checkpoint(lambda value: torch.sin(Product.apply(torch.sin(value), weight)), x, use_reentrant=False)  # type: ignore[no-untyped-call] # torch gives it no types
output.sum().backward()
print("expected: ['hook']")
print(f"got: {called}")
sys.exit(int(called != ["hook"]))
