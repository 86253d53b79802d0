"""Output gradients are paired with outputs by their order among the leaves, so any structure is accepted."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from d9d.pipelining.infra.stage.computations import BackwardComputeHandler, BackwardSeedTransfer
from torch import nn

torch.manual_seed(0)
linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
handler = BackwardComputeHandler(stage_index=1, module=linear, has_input_peer=True)
outputs = (linear(x), 2 * linear(x))
grads = {"b": torch.ones(7, 3), "a": torch.ones(7, 3)}
print("expected: an error for a dict of gradients for a tuple of outputs")
try:
    handler.backward_full(0, [x], BackwardSeedTransfer(outputs, grads))
    print("got: accepted")
    sys.exit(1)
except (ValueError, TypeError, RuntimeError) as error:
    print(f"got: raised {error}")
    sys.exit(0)
