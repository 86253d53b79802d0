"""A GPipe gives zeros to the parameters of an output that no gradient reaches, and NaN where its slope is infinite.

The recomputed backward is a custom Function that starts at every output; torch gives it zeros for one without gradient.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import Tensor, nn
from torchgpipe import GPipe


class Heads(nn.Module):
    """Two outputs; the second is the root of a value that is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.root = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both outputs."""
        return self.head(x), (self.root(x) * 0.0).sqrt()


torch.manual_seed(0)
heads, x = Heads(), torch.randn(7, 5)
pipe = GPipe(nn.Sequential(heads), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
pipe(x)[0].sum().backward()
del pipe  # at exit it would wait for workers that are gone
print("expected: no gradient of the head of the second output, since only the first has a backward")
grad = heads.root.weight.grad
print(f"got: {'none' if grad is None else f'a gradient whose sum is {float(grad.sum())}'}")
sys.exit(int(grad is not None))
