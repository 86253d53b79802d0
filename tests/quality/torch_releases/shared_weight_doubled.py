"""If a weight is used at two depths, the gradient of its inner use silently counts twice.

stage_backward_weight starts at both uses, and its walk from the outer one goes on through the inner one. pytorch
#180952, fixed by #181365; where a layer lies between the two, tied_apart_freed_graph.py tells what is left.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
stage = nn.Linear(5, 5)
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)


def forward() -> torch.Tensor:
    """Apply the same layer twice."""
    output: torch.Tensor = stage(torch.tanh(stage(x)))
    return output


(expected,) = torch.autograd.grad(forward(), stage.weight, grad)
_, groups = stage_backward_input([forward()], [grad], [x], stage.parameters())
stage_backward_weight(stage.parameters(), groups)
got = stage.weight.grad
assert got is not None
print(f"expected: {expected[0].tolist()}")
print(f"got: {got[0].tolist()}")
sys.exit(int(not torch.allclose(got, expected, rtol=1e-4, atol=1e-5)))
