"""I detaches outputs in place: if one was used to compute another output, W cannot use its saved tensor.

A stage that hands on its hidden state beside a head is enough.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
trunk, head = nn.Linear(5, 3), nn.Linear(3, 2)
stage = nn.ModuleList([trunk, head])
x, grads = torch.randn(7, 5, requires_grad=True), [torch.randn(7, 2), torch.randn(7, 3)]


def forward() -> list[torch.Tensor]:
    """Return the head and what it was computed from."""
    hidden = torch.tanh(trunk(x))
    return [head(hidden), hidden]


(expected,) = torch.autograd.grad(forward(), head.weight, grads)
print(f"expected: head.weight, largest element {float(expected.abs().max()):.3f}")
_, groups = stage_backward_input(forward(), list(grads), [x], stage.parameters())
try:
    stage_backward_weight(stage.parameters(), groups)
    print(f"got: {head.weight.grad}")
    sys.exit(0)
except RuntimeError as error:
    print(f"got: raised {error}")
    sys.exit(1)
