"""torch.native_group_norm reads a weight with gaps in memory as contiguous, and so does its backward its arguments.

``F.group_norm`` makes its arguments contiguous first, so only a direct call meets it.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch

torch.manual_seed(0)
x, weight = torch.randn(2, 5, 3), torch.randn(5, 2)[:, 0]


def normalized(scale: torch.Tensor) -> torch.Tensor:
    """Return the output for a weight."""
    return torch.native_group_norm(x, scale, None, 2, 5, 3, 1, 1e-5)[0]


expected, got = normalized(weight.contiguous()), normalized(weight)
print(f"expected: {expected[0, :, 0].tolist()}, as with a contiguous weight")
print(f"got: {got[0, :, 0].tolist()}")
sys.exit(int(not torch.allclose(got, expected, atol=1e-4)))
