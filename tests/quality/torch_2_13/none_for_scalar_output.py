"""None for a 0-d output is read as 1 by all of torch, though a pipeline means by it that no gradient flows.

Plain autograd does the same, so this is no defect of the three functions alone; PipelineStage passes None where the
next stage gave no gradient, and for an output that is not 0-d the same None raises.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
hidden = torch.tanh(linear(x))
(expected,) = torch.autograd.grad(hidden, x, grad)
hidden = torch.tanh(linear(x))
(got,) = stage_backward((hidden, hidden.sum()), (grad, None), [x])
assert got is not None
print(f"expected: {expected[0].tolist()}, as if no gradient flowed through the sum")
print(f"got: {got[0].tolist()}")
sys.exit(int(not torch.allclose(got, expected)))
