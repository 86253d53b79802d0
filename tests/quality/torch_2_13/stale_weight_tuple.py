"""stage_backward_weight returns .grad from before the call, or None if there was none.

pytorch #153833, closed; 2.13.0 still does it. torch's own stages drop the tuple; its annotation promises gradients.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
expected = torch.autograd.grad(linear(x), list(linear.parameters()), grad)
_, groups = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
got = stage_backward_weight(linear.parameters(), groups)
print(f"expected: {[tuple(tensor.shape) for tensor in expected]}")
print(f"got: {[None if tensor is None else tuple(tensor.shape) for tensor in got]}, .grad is {linear.bias.grad}")
sys.exit(int(any(tensor is None for tensor in got)))
