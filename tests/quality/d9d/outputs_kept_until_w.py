"""The result of an input backward holds the stage's outputs until the weight backward, to keep the graph alive."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import gc
import sys
import weakref

import torch
from d9d.pipelining.infra.stage.computations import BackwardComputeHandler, BackwardSeedTransfer
from torch import nn

torch.manual_seed(0)
linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
handler = BackwardComputeHandler(stage_index=1, module=linear, has_input_peer=True)
output = linear(x)
alive = weakref.ref(output)
handler.backward_input(0, [x], BackwardSeedTransfer([output], [torch.ones(7, 3)]))
del output
gc.collect()
print("expected: the output is gone after the input backward, since its graph can be held without it")
print(f"got: {'gone' if alive() is None else 'it is alive'}")
sys.exit(int(alive() is not None))
