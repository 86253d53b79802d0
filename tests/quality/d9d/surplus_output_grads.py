"""More output gradients than outputs are accepted, and the surplus is dropped silently."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_full, stage_backward_input
from torch import nn

linear, grad = nn.Linear(5, 3), torch.ones(7, 3)
print("expected: an error for two gradients of one output")
x = torch.randn(7, 5, requires_grad=True)
try:
    stage_backward_full([linear(x)], [grad, grad], [x])
    stage_backward_input([linear(x)], [grad, grad], [x], linear.parameters())
    print("got: accepted by both")
    sys.exit(1)
except (ValueError, RuntimeError) as error:
    print(f"got: raised {error}")
    sys.exit(0)
