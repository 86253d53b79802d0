"""An input that needs no gradient makes stage_backward_input raise; stage_backward skips it.

A stage that takes a mask is enough. Where it does not raise any more, input_without_grad_shifts.py tells what is left.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input

torch.manual_seed(0)
stage = nn.Linear(5, 3)
mask, x, grad = torch.ones(7, 5), torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
(expected,) = torch.autograd.grad(stage(x * mask), x, grad)
print(f"expected: None for the first input, {expected[0].tolist()} for the second")
try:
    got, _ = stage_backward_input([stage(x * mask)], [grad], [mask, x], stage.parameters())
    print(f"got: {[None if one is None else one[0].tolist() for one in got]}")
    sys.exit(0)
except RuntimeError as error:
    print(f"got: raised {error!r:.200}")
    sys.exit(1)
