"""None alone in a weight context, for a node that got no gradient, makes stage_backward_weight raise.

The context holds a tuple of gradients per node, with None for what got none.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
stage = nn.Linear(5, 3)
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
_, groups = stage_backward_input([stage(x)], [grad], [x], stage.parameters())
for group in groups:
    group["grads"] = [(None,) for _ in group["grads"]]
print("expected: no weight gradient, or zeros")
try:
    stage_backward_weight(stage.parameters(), groups)
    got = stage.weight.grad
    print(f"got: {got if got is None else got[0].tolist()}")
    sys.exit(int(got is not None and bool(got.any())))
except RuntimeError as error:
    print(f"got: raised {error!r:.200}")
    sys.exit(1)
