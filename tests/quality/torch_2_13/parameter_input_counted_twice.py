"""A parameter passed as an input gets its gradient from I and again from W: twice the right value.

stage_backward_input sets .grad of every input, stage_backward_weight adds to .grad of every parameter.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.nn import functional

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(3, 5))
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
(expected,) = torch.autograd.grad(functional.linear(x, weight), weight, grad)
_, groups = stage_backward_input([functional.linear(x, weight)], [grad], [weight, x], iter([weight]))
stage_backward_weight(iter([weight]), groups)
assert weight.grad is not None
print(f"expected: {expected[0].tolist()}")
print(f"got: {weight.grad[0].tolist()}")
sys.exit(int(not torch.allclose(weight.grad, expected)))
