"""A layer of a Pipe that returns one of its parameters first makes the backward raise: pop from an empty deque.

The recomputation hangs on the first output alone, and is never run where that is a parameter.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from fairscale.nn import Pipe
from torch import nn

torch.manual_seed(0)


class Layer(nn.Linear):
    """Returns its weight beside what is computed with it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override] # a layer names what it is given
        """Return both."""
        return self.weight, super().forward(x)


layer, x = Layer(5, 3), torch.randn(7, 5, requires_grad=True)
weight, output = layer(x)
(expected,) = torch.autograd.grad(weight.sum() + output.sum(), layer.weight)
print(f"expected: weight, largest element {float(expected.abs().max()):.3f}")
pipe = Pipe(nn.Sequential(layer), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
weight, output = pipe(x)
del pipe  # at exit it would wait for workers that are gone
try:
    (weight.sum() + output.sum()).backward()
    print(f"got: {layer.weight.grad}")
    sys.exit(0)
except (IndexError, RuntimeError) as error:
    print(f"got: raised {type(error).__name__}: {error}")
    sys.exit(1)
