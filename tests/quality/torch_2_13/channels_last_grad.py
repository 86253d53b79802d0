"""stage_backward_weight stores a contiguous convolution weight's gradient channels-last.

Plain autograd lays a gradient out as the parameter; DDP warns of one that lies otherwise, and copies it.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
stage = nn.Conv2d(3, 5, 3)
x = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last).requires_grad_()
grad = torch.randn(2, 5, 4, 4)
torch.autograd.backward(stage(x), grad)
assert stage.weight.grad is not None
expected, stage.weight.grad = stage.weight.grad.stride(), None
_, groups = stage_backward_input([stage(x)], [grad], [x], stage.parameters())
stage_backward_weight(stage.parameters(), groups)
got = stage.weight.grad.stride()
print(f"expected: strides {expected}, as of plain autograd and of the weight")
print(f"got: strides {got}")
sys.exit(int(got != expected))
