"""A backward of a GPipe whose first output is not read raises: pop from an empty deque.

The recomputation begins at the first output alone, so a loss that reads only another one finds nothing recomputed.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import Tensor, nn
from torchgpipe import GPipe


class Heads(nn.Module):
    """Two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both."""
        return self.first(x), self.second(x)


torch.manual_seed(0)
heads, x = Heads(), torch.randn(7, 5)
pipe = GPipe(nn.Sequential(heads), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
print("expected: a gradient of the second output's weight, since the loss reads it")
loss = pipe(x)[1].sum()
try:
    loss.backward()
    print("got: one")
except IndexError as error:
    print(f"got: raised IndexError: {error}")
    error.__traceback__ = None
del loss
del pipe  # at exit it would wait for workers that are gone
sys.exit(int(heads.second.weight.grad is None))
