"""The worker thread of a Pipe keeps its last task alive until the next forward or the end of the process."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import gc
import sys
import weakref

import torch
from fairscale.nn import Pipe
from torch import nn

torch.manual_seed(0)
pipe = Pipe(nn.Sequential(nn.Linear(5, 3)), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
x = torch.randn(7, 5, requires_grad=True)
pipe(x).sum().backward()
alive = weakref.ref(x)
del x
gc.collect()
seen = alive() is not None
print("expected: the input is gone after its backward")
print(f"got: {'it is alive' if seen else 'gone'}")
del pipe  # at exit it would wait for workers that are gone
sys.exit(int(seen))
