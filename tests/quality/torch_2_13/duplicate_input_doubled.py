"""One tensor passed as two inputs gets twice its gradient from stage_backward_input, in both places.

autograd.grad hands out one tensor for both; it is stored as the input's .grad and then added to itself.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input

torch.manual_seed(0)
left, right = nn.Linear(5, 3), nn.Linear(5, 3)
stage = nn.ModuleList([left, right])
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
(expected,) = torch.autograd.grad(left(x) * right(x), x, grad)
(got, again), _ = stage_backward_input([left(x) * right(x)], [grad], [x, x], stage.parameters())
assert got is not None
assert again is not None
print(f"expected: {expected[0].tolist()} in both places, or parts that add up to it")
print(f"got: {got[0].tolist()} and {again[0].tolist()}")
right_as_a_whole = torch.allclose(got, expected) and torch.allclose(again, expected)
sys.exit(int(not right_as_a_whole and not torch.allclose(got + again, expected)))
