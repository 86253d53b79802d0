"""The gradient of batch_norm is wrong if its weight has gaps in memory and its input has two dimensions.

The backward kernel reads the weight as contiguous. A column of a matrix is such a weight. The saved mean and standard
deviation are read in the same way.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch.nn import functional as F

torch.manual_seed(0)
x = torch.randn(4, 5, requires_grad=True)
weight = torch.randn(5, 2)[:, 0]
grad = torch.randn(4, 5)


def gradient(scale: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the input."""
    output = F.batch_norm(x, None, None, scale, None, training=True)
    return torch.autograd.grad(output, x, grad)[0]


expected, got = gradient(weight.contiguous()), gradient(weight)
print(f"expected: {expected[0].tolist()}, as with a contiguous weight")
print(f"got: {got[0].tolist()}")
sys.exit(int(not torch.allclose(got, expected, atol=1e-4)))
