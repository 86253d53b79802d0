"""stage_backward accepts more output gradients than outputs, and silently drops the surplus."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from pippy.backward import stage_backward
from torch import nn

linear = nn.Linear(5, 3)
x, grad = torch.randn(7, 5, requires_grad=True), torch.ones(7, 3)
print("expected: an error for two gradients of one output")
try:
    stage_backward((linear(x),), (grad, grad), [x], "", [0])
    print("got: accepted")
    sys.exit(1)
except RuntimeError as error:
    print(f"got: raised {error}")
    sys.exit(0)
