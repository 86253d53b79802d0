"""The input gradients of a sum, and .grad of both inputs, are the output gradient itself.

torch.autograd.grad hands it out so; but what is stored as .grad plain autograd clones, and here scaling one input's
.grad in place scales the other's and the receive buffer.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch.distributed.pipelining._backward import stage_backward_input

torch.manual_seed(0)
x, y, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)


def places() -> int:
    """Count the places in memory of .grad of both inputs and of the output gradient."""
    return len({tensor.data_ptr() for tensor in (x.grad, y.grad, grad) if tensor is not None})


torch.autograd.backward(x + y, grad)
expected = places()
x.grad = y.grad = None
stage_backward_input([x + y], [grad], [x, y], iter(()))
print(f"expected: {expected} places in memory")
print(f"got: {places()}")
sys.exit(int(places() < expected))
