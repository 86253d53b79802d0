"""stage_backward_input merges a parameter into one of two groups that it belongs to: a gradient is lost in W.

A parameter whose paths join those of two others, registered before it, is enough.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_input, stage_backward_weight
from torch import nn

torch.manual_seed(0)
left, right, both = (nn.Parameter(torch.randn(5)) for _ in range(3))
x, grad = torch.randn(7, 5, requires_grad=True), torch.ones(7, 5)


def forward() -> torch.Tensor:
    """Let each join the graph beside the third, which joins it twice."""
    return torch.tanh(x * (left * both)) * torch.sigmoid(x * (right * both))


weights = [left, right, both]
expected = torch.autograd.grad(forward(), weights, grad)
result = stage_backward_input([forward()], [grad], [x], iter(weights))
stage_backward_weight(iter(weights), result.param_groups)
got = [weight.grad for weight in weights]
print("expected: largest elements", *(f"{float(one.abs().max()):.3f}" for one in expected))
print("got:", *("None" if one is None else f"{float(one.abs().max()):.3f}" for one in got))
sys.exit(int(any(one is None or not torch.allclose(one, two) for one, two in zip(got, expected, strict=True))))
