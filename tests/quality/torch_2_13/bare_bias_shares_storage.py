"""If a parameter is added to the output, its .grad is the output gradient itself, and the next W adds into it.

Plain autograd clones the first gradient it stores unless it holds the only reference. Received output gradients lie in
buffers that the next step receives into: gradients accumulated over two steps are overwritten.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear, bare = nn.Linear(5, 3), nn.Parameter(torch.randn(7, 3))
stage = nn.ParameterList([*linear.parameters(), bare])
buffer = torch.randn(7, 3)
kept, expected = buffer.clone(), torch.zeros(7, 3)
for grad in (buffer, torch.randn(7, 3)):
    x = torch.randn(7, 5, requires_grad=True)
    expected += torch.autograd.grad(torch.tanh(linear(x)) + bare, bare, grad)[0]
    _, groups = stage_backward_input([torch.tanh(linear(x)) + bare], [grad], [x], stage.parameters())
    stage_backward_weight(stage.parameters(), groups)
print(f"expected: the first output gradient stays {kept[0].tolist()}")
print(f"got: {buffer[0].tolist()}")
buffer.zero_()  # the next step's receive
assert bare.grad is not None
print(f"expected: bare.grad {expected[0].tolist()} after the buffer is received into, got {bare.grad[0].tolist()}")
sys.exit(int(not torch.allclose(bare.grad, expected)))
