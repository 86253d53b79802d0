"""A summed parameter gets an expanded tensor as .grad, and the second W raises.

Adding in place to a tensor of stride 0 is refused; plain autograd clones what is not laid out like the parameter.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.nn import functional as F

torch.manual_seed(0)
linear, gain = nn.Linear(5, 3), nn.Parameter(torch.randn(7))
stage = nn.ParameterList([*linear.parameters(), gain])
expected = torch.zeros(7)
for mb in range(2):
    x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
    expected += torch.autograd.grad(torch.tanh(linear(x)) * gain.sum(), gain, grad)[0]
    _, groups = stage_backward_input([torch.tanh(linear(x)) * gain.sum()], [grad], [x], stage.parameters())
    try:
        stage_backward_weight(stage.parameters(), groups)
    except RuntimeError as error:
        print(f"expected: gain.grad {expected.tolist()}")
        print(f"got: W{mb} raised {error}")
        sys.exit(1)
print(f"expected: gain.grad {expected.tolist()}")
print(f"got: {gain.grad}")

# The same addition in place is refused for a dense gradient on a sparse one.
table, total = nn.Parameter(torch.randn(7, 3)), torch.zeros(7, 3)
for mb in range(2):
    x = torch.randn(4, 3, requires_grad=True)
    rows = F.embedding(torch.tensor([0, 2, 2, 5]), table, sparse=True)
    y = torch.tanh(F.linear(x, table)) if mb else x * rows
    total += torch.autograd.grad(y, table, torch.ones_like(y), retain_graph=True)[0].to_dense()
    _, groups = stage_backward_input([y], [torch.ones_like(y)], [x], iter([table]))
    try:
        stage_backward_weight(iter([table]), groups)
    except RuntimeError as error:
        print(f"expected: table.grad {total.tolist()}")
        print(f"got: W{mb} raised {error}")
        sys.exit(1)
print(f"expected: table.grad {total.tolist()}")
print(f"got: {table.grad}")
sys.exit(0)
