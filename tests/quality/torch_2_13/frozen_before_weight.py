"""stage_backward_weight raises KeyError if a parameter was frozen after stage_backward_input.

Plain autograd accumulates nothing for it, and the others get theirs.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
stage = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
_, groups = stage_backward_input([stage(x)], [grad], [x], stage.parameters())
stage[0].weight.requires_grad = False
print("expected: gradients of all parameters but the frozen one, as of plain autograd")
try:
    stage_backward_weight(stage.parameters(), groups)
except KeyError as error:
    print(f"got: KeyError: {error}")
    sys.exit(1)
print(f"got: gradients of {[name for name, parameter in stage.named_parameters() if parameter.grad is not None]}")
sys.exit(0)
