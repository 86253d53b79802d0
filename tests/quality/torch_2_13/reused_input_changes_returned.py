"""If two micro-batches share an input, the second action adds into the gradient that the first I returned.

pytorch #164329. I stores the very tensor it returns as the input's .grad; the next I adds to it in place, and a full
backward after an I returns the running sum.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grad, other = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3), torch.randn(7, 3)
first, second = (torch.autograd.grad(torch.tanh(linear(x)), x, g)[0] for g in (grad, other))
(got_first,), _ = stage_backward_input([torch.tanh(linear(x))], [grad], [x], linear.parameters())
(got_second,) = stage_backward((torch.tanh(linear(x)),), (other,), [x])
assert got_first is not None
assert got_second is not None
print(f"expected: {first[0].tolist()} returned by I0, {second[0].tolist()} by B1")
print(f"got: {got_first[0].tolist()} and {got_second[0].tolist()}")
sys.exit(int(not torch.allclose(got_first, first) or not torch.allclose(got_second, second)))
