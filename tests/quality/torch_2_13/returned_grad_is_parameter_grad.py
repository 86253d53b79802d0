"""stage_backward_input returns the output gradient itself for an added input, and W stores it as .grad.

The caller owns what was returned: scaling it in place, or receiving into it, changes the parameter's gradient.
Plain autograd clones what it stores. Found by `gradconform fuzz torch`, shrunk to one line: `x0 + p0`.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
bare = nn.Parameter(torch.randn(7, 3))
x, grad = torch.randn(7, 3, requires_grad=True), torch.randn(7, 3)
(expected,) = torch.autograd.grad(x + bare, bare, grad)
expected = expected.clone()
(returned,), groups = stage_backward_input([x + bare], [grad], [x], iter([bare]))
assert returned is not None
returned.mul_(0.5)  # the caller averages the gradient that it sends on
stage_backward_weight(iter([bare]), groups)
assert bare.grad is not None
print(f"expected: bare.grad {expected[0].tolist()}")
print(f"got: {bare.grad[0].tolist()}")
sys.exit(int(not torch.allclose(bare.grad, expected)))
