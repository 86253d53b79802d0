"""A parameter that is an output, passed by its edge, gets no gradient from I and W.

torch 2.15's runtime lets go of an output once it is sent, and starts at its gradient edge: for a parameter, the node
that accumulates its gradient. That node joins no path from the inputs; stage_backward gets the gradient right.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear, table = nn.Linear(5, 3), nn.Parameter(torch.randn(2, 11))
stage = nn.ParameterList([*linear.parameters(), table])
x, grads = torch.randn(7, 5, requires_grad=True), [torch.randn(7, 3), torch.randn(2, 11)]


def edges() -> list[GradientEdge]:
    """Return the edges of the result and of the table, whose tensors are let go of."""
    return [get_gradient_edge(torch.tanh(linear(x))), get_gradient_edge(table)]


stage_backward(edges(), list(grads), [x])
expected, table.grad = table.grad, None
print(f"expected: table, as from stage_backward, equal to what it was given: {torch.equal(expected, grads[1])}")
stage.zero_grad()
_, groups = stage_backward_input(edges(), list(grads), [x], stage.parameters())
stage_backward_weight(stage.parameters(), groups)
print(f"got: {table.grad}; .grad of the weight is there: {linear.weight.grad is not None}")
sys.exit(int(table.grad is None))
