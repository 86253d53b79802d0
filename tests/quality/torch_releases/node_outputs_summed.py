"""The gradients of a node's several outputs are summed into the first: the weight gradient is silently wrong.

stage_backward_weight starts at output 0 of the node where the weight meets the input's path, with the sum of all. On a
CPU, an LSTM is one node (of oneDNN) with an output and two states.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
stage = nn.LSTM(5, 4)
x, grad = torch.randn(3, 2, 5, requires_grad=True), torch.randn(3, 2, 4)


def forward() -> torch.Tensor:
    """Use the output and the last state."""
    outputs, (state, _) = stage(x)
    result: torch.Tensor = outputs + torch.tanh(state)
    return result


(expected,) = torch.autograd.grad(forward(), stage.weight_ih_l0, grad)
_, groups = stage_backward_input([forward()], [grad], [x], stage.parameters())
stage_backward_weight(stage.parameters(), groups)
got = stage.weight_ih_l0.grad
assert isinstance(got, torch.Tensor)
print(f"expected: {expected[0].tolist()}")
print(f"got: {got[0].tolist()}")
sys.exit(int(not torch.allclose(got, expected, rtol=1e-4, atol=1e-5)))
