"""stage_backward returns .grad of an input and leaves it there: a second micro-batch with it gets the running sum.

torch's descendant of this function had the same defect until #164329; here what was returned first changes as well.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from pippy.backward import stage_backward
from torch import nn

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grad = torch.randn(7, 5, requires_grad=True), torch.ones(7, 3)
(expected,) = torch.autograd.grad(linear(x), x, grad)
for _ in range(2):
    (got,), _ = stage_backward((linear(x),), (grad,), [x], "", [0])
print(f"expected: of each micro-batch, largest element {float(expected.abs().max()):.3f}")
print(f"got: of the second one, largest element {float(got.abs().max()):.3f}")
sys.exit(int(not torch.allclose(got, expected)))
