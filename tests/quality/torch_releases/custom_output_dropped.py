"""If an output of a custom function is freed before stage_backward_weight, its node is freed too, and it raises.

The context holds the node, but not what holds the node's own memory. On releases where such a node ends the process, it
does so under autograd.grad as well.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

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


weight = nn.Parameter(torch.randn(7, 5))
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)
output = Product.apply(torch.sin(x), weight)  # type: ignore[no-untyped-call] # torch gives it no types
(expected,) = torch.autograd.grad(output, weight, grad, retain_graph=True)
_, groups = stage_backward_input([output], [grad], [x], iter([weight]))
del output
print(f"expected: {expected[0].tolist()}")
try:
    stage_backward_weight(iter([weight]), groups)
    got = weight.grad
    print(f"got: {got if got is None else got[0].tolist()}")
    sys.exit(int(got is None or not torch.allclose(got, expected)))
except RuntimeError as error:
    print(f"got: raised {error!r:.200}")
    sys.exit(1)
