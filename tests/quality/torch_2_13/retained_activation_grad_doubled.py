""".grad of an activation with retain_grad() is twice what it should be after I and W: W walks through its node again.

The hook that retains the gradient adds; plain autograd gives it once.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)


def forward() -> tuple[torch.Tensor, torch.Tensor]:
    """Retain the gradient of the Linear's output."""
    hidden = linear(x)
    hidden.retain_grad()
    return hidden, torch.tanh(hidden)


expected, output = forward()
torch.autograd.backward(output, grad)
linear.zero_grad()
got, output = forward()
_, groups = stage_backward_input([output], [grad], [x], linear.parameters())
stage_backward_weight(linear.parameters(), groups)
assert expected.grad is not None
assert got.grad is not None
print(f"expected: {expected.grad[0].tolist()}")
print(f"got: {got.grad[0].tolist()}")
sys.exit(int(not torch.allclose(got.grad, expected.grad)))
