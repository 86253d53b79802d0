"""An input that is no tensor makes stage_backward_input raise; stage_backward skips it.

A number handed on from stage to stage is enough.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input

torch.manual_seed(0)
stage = nn.Linear(5, 3)
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
(expected,) = torch.autograd.grad(stage(x), x, grad)
print(f"expected: {[expected[0].tolist(), None]}")
try:
    got, _ = stage_backward_input([stage(x)], [grad], [x, 3], stage.parameters())
    print(f"got: {[None if one is None else one[0].tolist() for one in got]}")
    sys.exit(0)
except (AttributeError, RuntimeError) as error:
    print(f"got: raised {error!r:.200}")
    sys.exit(1)
