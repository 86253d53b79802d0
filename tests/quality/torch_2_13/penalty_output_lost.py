"""A parameter that meets the input's path, and reaches another output without it, loses that output's gradient.

The group of the parameter holds the places where it meets the path of the inputs, and no others. A penalty on a weight,
returned beside the result, is enough; the gradient is there, finite, and wrong without a word.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grads = torch.randn(7, 5, requires_grad=True), [torch.randn(7, 3), torch.randn(5)]


def forward() -> list[torch.Tensor]:
    """Return a penalty on the weight beside the result."""
    return [torch.tanh(linear(x)), linear.weight.square().sum(dim=0)]


(expected,) = torch.autograd.grad(forward(), linear.weight, grads)
_, groups = stage_backward_input(forward(), list(grads), [x], linear.parameters())
stage_backward_weight(linear.parameters(), groups)
assert linear.weight.grad is not None
print(f"expected: {expected[0].tolist()}")
print(f"got: {linear.weight.grad[0].tolist()}")
sys.exit(int(not torch.allclose(linear.weight.grad, expected)))
