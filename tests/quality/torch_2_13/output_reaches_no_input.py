"""If a parameter reaches an output without meeting the input's path, its gradient is silently dropped.

stage_backward_input looks for parameters along the reverse closure of the inputs; what joins no such path is in no
group. An auxiliary output (a penalty, a learned table) is enough; the full backward gets it right.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear, table = nn.Linear(5, 3), nn.Parameter(torch.randn(2, 11))
stage = nn.ParameterList([*linear.parameters(), table])
x, grads = torch.randn(7, 5, requires_grad=True), [torch.randn(7, 3), torch.randn(11)]


def forward() -> list[torch.Tensor]:
    """Return a penalty on the table beside the result."""
    return [torch.tanh(linear(x)), table.square().sum(dim=0)]


(expected,) = torch.autograd.grad(forward(), table, grads)
_, groups = stage_backward_input(forward(), list(grads), [x], stage.parameters())
stage_backward_weight(stage.parameters(), groups)
print(f"expected: table, largest element {float(expected.abs().max()):.3f}")
print(f"got: {table.grad}; .grad of the weight is there: {linear.weight.grad is not None}")
sys.exit(int(table.grad is None))
