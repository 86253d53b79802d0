"""The gradients of several outputs of one node are summed into the first: the weight gradient is wrong without a word.

stage_backward_weight starts at output 0 of the node where the weight meets the input's path, with the sum of all.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)


class ProductAndSum(torch.autograd.Function):
    """A product and a sum of the same two tensors: one node with two outputs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Multiply and add."""
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what both outputs give to each factor."""
        x, y = ctx.saved_tensors
        return grads[0] * y + grads[1], grads[0] * x + grads[1]


weight = nn.Parameter(torch.randn(7, 5))
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)


def forward() -> torch.Tensor:
    """Use both outputs of the node."""
    product, total = ProductAndSum.apply(x, weight)  # type: ignore[no-untyped-call] # torch gives it no types
    output: torch.Tensor = product + torch.tanh(total)
    return output


(expected,) = torch.autograd.grad(forward(), weight, grad)
_, groups = stage_backward_input([forward()], [grad], [x], iter([weight]))
stage_backward_weight(iter([weight]), groups)
assert weight.grad is not None
print(f"expected: {expected[0].tolist()}")
print(f"got: {weight.grad[0].tolist()}")
sys.exit(int(not torch.allclose(weight.grad, expected)))
