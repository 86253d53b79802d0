"""A GPipe that recomputes updates a BatchNorm's running statistics twice for one batch.

deferred_batch_norm=True is there for several chunks; what is wrong here is one chunk and a plain BatchNorm.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torchgpipe import GPipe as Pipe

torch.manual_seed(0)
norm = nn.BatchNorm1d(5)
pipe = Pipe(nn.Sequential(norm), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
pipe(torch.randn(7, 5, requires_grad=True)).sum().backward()
print("expected: num_batches_tracked 1 after one batch")
print(f"got: {int(norm.num_batches_tracked)}")
sys.exit(int(int(norm.num_batches_tracked) != 1))
