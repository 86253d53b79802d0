"""The backward kernel of layer_norm reads the saved mean and standard deviation as contiguous, whatever their strides.

Autograd saves contiguous ones, so plain training does not meet it; a saved-tensor hook that returns them in another
layout does.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import Tensor
from torch.nn import functional as F


def with_gaps(tensor: Tensor) -> Tensor:
    """Return the same numbers with a gap behind each."""
    return torch.stack([tensor, torch.zeros_like(tensor)], -1)[..., 0]


torch.manual_seed(0)
x, grad = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5)
(expected,) = torch.autograd.grad(F.layer_norm(x, (5,)), x, grad)
with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, with_gaps):
    (got,) = torch.autograd.grad(F.layer_norm(x, (5,)), x, grad)
print(f"expected: {expected[1].tolist()}, as with what is saved as it is")
print(f"got: {got[1].tolist()}")
sys.exit(int(not torch.allclose(got, expected, atol=1e-4)))
