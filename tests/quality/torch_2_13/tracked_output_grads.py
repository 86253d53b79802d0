"""An output gradient that requires a gradient is stored as .grad and returned as it is, and the second W raises.

Plain autograd stores and returns gradients that require none, whatever the output gradients do. Where an operation
passes its gradient on as it is, I returns the caller's own tensor and W keeps it: the next W adds into a leaf.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
bare = nn.Parameter(torch.randn(3))
wrong = []
for number in range(2):
    x = torch.randn(3, requires_grad=True)
    output_grad = torch.randn(3, requires_grad=True)
    (returned,), groups = stage_backward_input([x * 1.0 + bare], [output_grad], [x], iter([bare]))
    assert returned is not None
    try:
        stage_backward_weight(iter([bare]), groups)
        raised = "nothing"
    except RuntimeError as error:
        raised = str(error)
    tracked = bare.grad is not None and bare.grad.requires_grad
    print(f"W of micro-batch {number}: expected .grad requires a gradient False and raises nothing")
    print(f"W of micro-batch {number}: got {tracked} and raises {raised}")
    wrong.append(tracked or raised != "nothing")
sys.exit(int(any(wrong)))
