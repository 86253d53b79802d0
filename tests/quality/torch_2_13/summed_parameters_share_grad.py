"""Two parameters whose gradient is one tensor share one .grad: micro-batch 2 is added twice to both.

autograd.grad hands out one tensor for both terms of a sum; plain autograd clones it for each. A silent wrong number.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear, a, b = nn.Linear(5, 3), nn.Parameter(torch.randn(7, 3)), nn.Parameter(torch.randn(7, 3))
stage = nn.ParameterList([*linear.parameters(), a, b])
expected = torch.zeros(7, 3)
for _ in range(2):
    x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
    expected += torch.autograd.grad(torch.tanh(linear(x)) + a + b, a, grad)[0]
    groups = stage_backward_input([torch.tanh(linear(x)) + a + b], [grad], [x], stage.parameters())[1]
    stage_backward_weight(stage.parameters(), groups)
assert a.grad is not None
print(f"expected: {expected[0].tolist()}")
print(f"got: {a.grad[0].tolist()}; one object for both parameters: {a.grad is b.grad}")
sys.exit(int(not torch.allclose(a.grad, expected)))
