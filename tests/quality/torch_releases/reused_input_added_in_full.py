"""If two micro-batches share an input, the second stage_backward returns the sum of both gradients.

It returns .grad of the input, into which plain autograd adds, and leaves it there for the next. A step that is run
again with the tensors of the one before is enough.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, first, second = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3), torch.randn(7, 3)
(expected,) = torch.autograd.grad(torch.tanh(linear(x)), x, second)
stage_backward((torch.tanh(linear(x)),), (first,), [x])
(got,) = stage_backward((torch.tanh(linear(x)),), (second,), [x])
assert got is not None
print(f"expected: {expected[0].tolist()}")
print(f"got: {got[0].tolist()}")
sys.exit(int(not torch.allclose(got, expected)))
