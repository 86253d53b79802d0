"""Backward kernels of three pooling operations read saved indices as contiguous, whatever their strides.

They are adaptive_max_pool3d, fractional_max_pool2d and fractional_max_pool3d. Autograd saves contiguous indices, so
plain training does not meet it; a saved-tensor hook that returns them in another layout does. pytorch #197888. The
first does not check the range: large numbers in the gaps end the process by SIGSEGV.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import Tensor
from torch.nn import functional as F


def with_gaps(tensor: Tensor) -> Tensor:
    """Return the same integers with a gap behind each."""
    return torch.stack([tensor, tensor], -1)[..., 0] if not tensor.is_floating_point() else tensor


torch.manual_seed(0)
POOLINGS = {
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 3),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(
        x[:, :, 0], 2, 3, _random_samples=torch.full((1, 2, 2), 0.5)
    ),
    "fractional_max_pool3d": lambda x: F.fractional_max_pool3d(x, 2, 3, _random_samples=torch.full((1, 2, 3), 0.5)),
}
wrong = 0
for name, pool in POOLINGS.items():
    x = torch.randn(1, 2, 5, 5, 5, requires_grad=True)
    grad = torch.randn_like(pool(x))
    (expected,) = torch.autograd.grad(pool(x), x, grad)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, with_gaps):
        (got,) = torch.autograd.grad(pool(x), x, grad)
    apart = float((got - expected).abs().max())
    print(
        f"{name}: expected: the same gradient for contiguous indices and for those with gaps; got: apart by {apart:.3g}"
    )
    wrong += apart > 1e-4
sys.exit(int(wrong == len(POOLINGS)))
