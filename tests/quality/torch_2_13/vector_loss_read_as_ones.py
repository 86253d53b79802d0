"""stage_backward_input accepts a loss that is no scalar and starts with ones; stage_backward refuses it.

Plain autograd refuses it too. A loss with reduction="none" trains on the sum under a split schedule, and raises under
any other.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x = torch.randn(7, 5, requires_grad=True)
try:
    stage_backward(linear(x).square(), None, [x])
    print("expected: stage_backward accepts it")
    expected = True
except RuntimeError as error:
    print(f"expected: {error.__cause__}")
    expected = False
try:
    (got,), _ = stage_backward_input([linear(x).square()], None, [x], linear.parameters())
    print(f"got: no error, {'None' if got is None else got[0].tolist()}")
    sys.exit(int(not expected))
except RuntimeError as error:
    print(f"got: {error.__cause__}")
    sys.exit(0)
