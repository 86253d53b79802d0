"""An input that needs no gradient shifts the gradients that stage_backward_input returns by one place.

Inputs without gradient are left out before autograd.grad, and nothing says where they were: the gradient of the next
input stands there, where plain autograd has None.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input

torch.manual_seed(0)
stage = nn.Linear(5, 3)
mask, x, grad = torch.ones(7, 5), torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
(expected,) = torch.autograd.grad(stage(x * mask), x, grad)
got, _ = stage_backward_input([stage(x * mask)], [grad], [mask, x], stage.parameters())
print(f"expected: None for the first input, {expected[0].tolist()} for the second")
print(f"got: {[None if one is None else one[0].tolist() for one in got]}")
right = len(got) == 2 and got[0] is None and got[1] is not None and torch.equal(got[1], expected)
sys.exit(int(not right))
