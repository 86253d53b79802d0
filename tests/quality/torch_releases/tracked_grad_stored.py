"""If an output gradient requires a gradient, a parameter added to the output stores a .grad that requires one as well.

W stores the result of ``torch.autograd.grad``, the output gradient itself or a sum with a graph. Plain autograd's .grad
has none.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear, bare = nn.Linear(5, 3), nn.Parameter(torch.randn(7, 3))
stage = nn.ParameterList([*linear.parameters(), bare])
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3, requires_grad=True)
_, groups = stage_backward_input([torch.tanh(linear(x)) + bare], [grad], [x], stage.parameters())
stage_backward_weight(stage.parameters(), groups)
assert bare.grad is not None
print(f"expected: bare.grad requires a gradient: False; got: {bare.grad.requires_grad}")
sys.exit(int(bare.grad.requires_grad))
