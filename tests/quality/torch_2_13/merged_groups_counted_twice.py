"""A parameter that two existing groups reach ends up in both, and counts twice.

get_param_groups merges it into each of the two groups that it finds and leaves both. Where the nodes save tensors, the
second walk raises as in tied_apart_freed_graph.py; sums save none, and the gradients are doubled without a word.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
first, second, shared = (nn.Parameter(torch.randn(5)) for _ in range(3))
stage = nn.ParameterList([first, second, shared])
x, y, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)


def forward() -> torch.Tensor:
    """Add to each input its own parameter and the shared one."""
    return torch.tanh(x + (first + shared)) * torch.sigmoid(y + (second + shared))


(expected,) = torch.autograd.grad(forward(), shared, grad)
_, groups = stage_backward_input([forward()], [grad], [x, y], stage.parameters())
stage_backward_weight(stage.parameters(), groups)
assert shared.grad is not None
print(f"expected: {expected.tolist()}")
print(f"got: {shared.grad.tolist()}")
sys.exit(int(not torch.allclose(shared.grad, expected)))
