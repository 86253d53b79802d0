"""The weight context holds the output gradient itself: if it is overwritten after I, W adds the new values.

The gradients of the last layer's parameters are computed from it in W.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
stage = nn.Sequential(nn.Linear(5, 11), nn.Tanh(), nn.Linear(11, 3))
x, buffer = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
expected = torch.autograd.grad(stage(x), stage[2].bias, buffer)[0]
_, groups = stage_backward_input([stage(x)], [buffer], [x], stage.parameters())
buffer.fill_(7.0)  # the next micro-batch's receive
stage_backward_weight(stage.parameters(), groups)
assert stage[2].bias.grad is not None
print(f"expected: {expected.tolist()}")
print(f"got: {stage[2].bias.grad.tolist()}")
sys.exit(int(not torch.allclose(stage[2].bias.grad, expected)))
