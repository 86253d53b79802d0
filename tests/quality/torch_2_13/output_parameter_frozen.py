"""stage_backward_input detaches the outputs in place: an output that is a parameter is never trained again.

Tensor.detach_ on a leaf clears requires_grad. W then finds no accumulator for a weight that is used elsewhere too
(KeyError), or leaves its gradient None; an output that is the input loses its flag as well.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grads = torch.randn(7, 5, requires_grad=True), [torch.randn(3, 5), torch.randn(7, 3), torch.randn(7, 5)]


def forward() -> list[torch.Tensor]:
    """Return the weight, the result and the input."""
    return [linear.weight, torch.tanh(linear(x)), x]


(expected,) = torch.autograd.grad(forward(), linear.weight, grads)
_, groups = stage_backward_input(forward(), list(grads), [x], linear.parameters())
print(f"expected: requires_grad True and True, largest element {float(expected.abs().max()):.3f}")
try:
    stage_backward_weight(linear.parameters(), groups)
    print(f"got: requires_grad {linear.weight.requires_grad} and {x.requires_grad}, {linear.weight.grad}")
except KeyError as error:
    print(f"got: requires_grad {linear.weight.requires_grad} and {x.requires_grad}, W raised KeyError {error}")
sys.exit(int(not linear.weight.requires_grad))
