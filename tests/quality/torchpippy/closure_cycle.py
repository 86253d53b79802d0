"""stage_backward keeps outputs, output gradients and the graph in a cycle until the garbage collector runs.

A recursive function within it refers to itself and to the lists. torch's descendant was mended by #136507.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import gc
import sys
import weakref

import torch
from pippy.backward import stage_backward
from torch import nn

torch.manual_seed(0)
linear = nn.Linear(5, 3)
gc.disable()
output = linear(torch.randn(7, 5, requires_grad=True))
alive = weakref.ref(output)
stage_backward((output,), (torch.ones(7, 3),), [], "", [0])
del output
seen = alive() is not None
gc.enable()
print("expected: the output is gone once its caller has let go of it")
print(f"got: {'it is alive' if seen else 'gone'}")
sys.exit(int(seen))
