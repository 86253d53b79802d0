"""stage_backward clears .grad of its inputs: a parameter passed as an input loses its accumulated gradient.

Also what earlier micro-batches added. That the full backward clears .grad of activations is no defect.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward
from torch.nn import functional

torch.manual_seed(0)
weight = nn.Parameter(torch.randn(3, 5))
expected = torch.zeros(3, 5)
for _ in range(2):
    x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
    expected += torch.autograd.grad(functional.linear(x, weight), weight, grad)[0]
    stage_backward((functional.linear(x, weight),), (grad,), [weight, x])
print(f"expected: weight.grad, largest element {float(expected.abs().max()):.3f}")
print(f"got: {weight.grad}")
sys.exit(int(weight.grad is None))
