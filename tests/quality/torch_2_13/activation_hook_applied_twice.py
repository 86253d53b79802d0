"""A hook on the output of a Linear runs in I, and in W again on its own result: a half becomes a quarter.

I notes the gradient down after the hook; W starts at the same node, whose hook runs once more. Plain autograd called
twice, once for the inputs and once for the parameters, starts at the output each time and applies it once.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)


def forward() -> torch.Tensor:
    """Halve the gradient where the Linear's output leaves it."""
    hidden = linear(x)
    hidden.register_hook(lambda grad: grad * 0.5)
    return torch.tanh(hidden)


output = forward()
torch.autograd.grad(output, x, grad, retain_graph=True)
(expected,) = torch.autograd.grad(output, linear.bias, grad)
_, groups = stage_backward_input([forward()], [grad], [x], linear.parameters())
stage_backward_weight(linear.parameters(), groups)
print(f"expected: {expected.tolist()}")
print(f"got: {linear.bias.grad.tolist() if linear.bias.grad is not None else None}")
sys.exit(int(linear.bias.grad is None or not torch.allclose(linear.bias.grad, expected)))
