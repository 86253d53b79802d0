"""A full-backward hook on the module that makes the output turns it into a view, and stage_backward_input raises.

The cause is that of view_output.py (pytorch #142229); the stage itself ends in no view.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input

torch.manual_seed(0)
linear = nn.Linear(5, 3)
calls: list[str] = []
linear.register_full_backward_hook(lambda *_: calls.append("hook"))
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
(expected,) = torch.autograd.grad(linear(x), x, grad)
print(f"expected: {len(calls)} hook called, largest element {float(expected.abs().max()):.3f}")
try:
    (got,), _ = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
    print(f"got: largest element {float(got.abs().max()):.3f}" if got is not None else "got: None")
    sys.exit(0)
except RuntimeError as error:
    print(f"got: raised {error.__cause__}")
    sys.exit(1)
