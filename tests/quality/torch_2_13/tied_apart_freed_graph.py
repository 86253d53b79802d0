"""If a weight is used at two depths with a layer between, stage_backward_weight walks a graph that it freed.

The walk from the outer use to the inner one crosses the layer between, whose own group has freed its buffers or finds
them freed. The sum of #180952 (fixed by #181365) is right, but only with retain_graph=True.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
outer, between = nn.Linear(5, 5), nn.Linear(5, 5)
stage = nn.ModuleList([outer, between])
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)


def forward() -> torch.Tensor:
    """Apply outer, between and outer again."""
    output: torch.Tensor = outer(torch.tanh(between(torch.tanh(outer(x)))))
    return output


(expected,) = torch.autograd.grad(forward(), outer.weight, grad)
print(f"expected: outer.weight, largest element {float(expected.abs().max()):.3f}")
_, groups = stage_backward_input([forward()], [grad], [x], stage.parameters())
try:
    stage_backward_weight(stage.parameters(), groups)
    print(f"got: {outer.weight.grad}")
    sys.exit(0)
except RuntimeError as error:
    print(f"got: raised {error}")
    sys.exit(1)
