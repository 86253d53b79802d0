"""A custom function that returns None for its weight makes stage_backward_weight raise.

Functions that compute the weight gradient elsewhere return None. pytorch #166577, #174017: autograd.grad is called
without allow_unused.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)


class Product(torch.autograd.Function):
    """A product with a gradient for its first factor only."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        ctx.save_for_backward(y)
        return x * y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, None]:
        """Return None for the second factor."""
        return grads[0] * ctx.saved_tensors[0], None


weight = nn.Parameter(torch.randn(7, 5))
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)
torch.autograd.backward(Product.apply(x, weight), grad)  # type: ignore[no-untyped-call] # torch gives it no types
print(f"expected: no error, weight.grad is {weight.grad}")
output = Product.apply(x, weight)  # type: ignore[no-untyped-call] # torch gives it no types
_, groups = stage_backward_input([output], [grad], [x], iter([weight]))
try:
    stage_backward_weight(iter([weight]), groups)
    print(f"got: no error, weight.grad is {weight.grad}")
    sys.exit(0)
except RuntimeError as error:
    print(f"got: raised {error}")
    sys.exit(1)
