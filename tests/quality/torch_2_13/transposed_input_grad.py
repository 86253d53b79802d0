"""I can return an input gradient in another memory layout than the input, which then cannot be sent.

isend refuses what is not contiguous ("input tensor has to be contiguous" from gloo). The full backward takes .grad,
which plain autograd lays out like the input. A stage that begins with a transpose is enough.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input

torch.manual_seed(0)
norm = nn.LayerNorm(3)
x, grad = torch.randn(2, 3, 5, requires_grad=True), torch.randn(2, 5, 3)
(expected,) = stage_backward((torch.tanh(norm(x.transpose(1, 2))),), (grad,), [x])
(got,), _ = stage_backward_input([torch.tanh(norm(x.transpose(1, 2)))], [grad], [x], norm.parameters())
assert expected is not None
assert got is not None
print(f"expected: strides {expected.stride()} as from stage_backward, contiguous: {expected.is_contiguous()}")
print(f"got: strides {got.stride()}, contiguous: {got.is_contiguous()}")
sys.exit(int(not got.is_contiguous()))
