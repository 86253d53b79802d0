"""A split backward drops gradients that flow from an output to a parameter but to no input; a full one keeps them.

A penalty on a weight that a stage returns beside its result is enough.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_full, stage_backward_input, stage_backward_weight
from torch import nn

torch.manual_seed(0)
linear = nn.Linear(5, 3)
grads = [torch.ones(7, 3), torch.ones(3)]


def forward(x: torch.Tensor) -> list[torch.Tensor]:
    """Return the result and the penalty."""
    return [linear(x), linear.weight.square().sum(1)]


x = torch.randn(7, 5, requires_grad=True)
stage_backward_full(forward(x), grads, [x])
expected = linear.weight.grad.clone()
linear.zero_grad()
result = stage_backward_input(forward(x), grads, [x], linear.parameters())
stage_backward_weight(linear.parameters(), result.param_groups)
print(f"expected: weight, largest element {float(expected.abs().max()):.3f}, as after a full backward")
print(f"got: largest element {float(linear.weight.grad.abs().max()):.3f}")
sys.exit(int(not torch.allclose(linear.weight.grad, expected)))
