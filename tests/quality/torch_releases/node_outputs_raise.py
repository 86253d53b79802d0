"""A weight on a node of several outputs makes stage_backward_weight raise: it expects one output per node.

On a CPU, an LSTM is one node (of oneDNN) with an output and two states.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
stage = nn.LSTM(5, 4)
x, grad = torch.randn(3, 2, 5, requires_grad=True), torch.randn(3, 2, 4)
(expected,) = torch.autograd.grad(stage(x)[0], stage.weight_ih_l0, grad)
print(f"expected: {expected[0].tolist()}")
_, groups = stage_backward_input([stage(x)[0]], [grad], [x], stage.parameters())
try:
    stage_backward_weight(stage.parameters(), groups)
    print(f"got: {stage.weight_ih_l0.grad}")
    sys.exit(0)
except AssertionError as error:
    print(f"got: raised {error!r:.200}")
    sys.exit(1)
