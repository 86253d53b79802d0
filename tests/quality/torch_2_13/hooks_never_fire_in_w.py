"""stage_backward_weight writes .grad without autograd, so post-accumulate-gradient hooks never fire.

DDP and an optimizer in the backward hang on them. pytorch #144530, open; #144535 and #134052 mend what follows from it
for FSDP.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
linear = nn.Linear(5, 3)
calls: list[str] = []
for name, parameter in linear.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda _, name=name: calls.append(name))
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
torch.autograd.backward(linear(x), grad)
expected = sorted(calls)
calls.clear()
_, groups = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
stage_backward_weight(linear.parameters(), groups)
print(f"expected: hooks of {expected} fired")
print(f"got: hooks of {sorted(calls)} fired")
sys.exit(int(sorted(calls) != expected))
