"""If no input needs a gradient, the split backward silently computes no parameter gradient.

pytorch #138863. PipelineStage knows (a comment in backward_weight_one_chunk says so) and runs the full backward for
stage 0; a later stage behind a frozen one, which receives activations that need no gradient, gets no such help.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
dropped = 0
for name, x, stage in (
    ("behind a frozen stage", torch.randn(7, 5), nn.Linear(5, 3)),
    ("an Embedding", torch.randint(5, (7,)), nn.Embedding(5, 3)),
):
    grad = torch.randn(7, 3)
    expected = torch.autograd.grad(stage(x), list(stage.parameters()), grad)
    _, groups = stage_backward_input([stage(x)], [grad], [x], stage.parameters())
    stage_backward_weight(stage.parameters(), groups)
    got = [parameter.grad for parameter in stage.parameters()]
    print(f"{name}: expected {[tuple(tensor.shape) for tensor in expected]}, got {got}")
    dropped += sum(tensor is None for tensor in got)
sys.exit(int(dropped > 0))
