"""A trained bias beside a frozen weight gets no gradient: LinearWithFrozenWeight.backward returns None for it.

ColumnParallelLinear and RowParallelLinear take this function if their weight is frozen, so a model whose biases
alone are trained does not train.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from megatron.core.tensor_parallel.layers import linear_with_frozen_weight
from torch import nn

torch.manual_seed(0)
linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
linear.weight.requires_grad = False
expected = torch.autograd.grad(linear(x).sum(), linear.bias)[0]
linear_with_frozen_weight(x, linear.weight, linear.bias, False, False, False, None).sum().backward()  # noqa: FBT003 (its own)
got = linear.bias.grad
print(f"expected: gradient of the bias {expected.tolist()}")
print(f"got: {got}")
sys.exit(int(got is None or not torch.allclose(got, expected)))
