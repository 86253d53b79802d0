"""A pipe ignores autocast: its partitions run in threads, and autocast belongs to a thread."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch import nn
from torchgpipe import GPipe as Pipe

torch.manual_seed(0)
stage = nn.Linear(5, 3)
pipe = Pipe(nn.Sequential(stage), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
x = torch.randn(7, 5, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    expected, got = stage(x).dtype, pipe(x).dtype
print(f"expected: outputs of {expected}, as of the stage itself")
print(f"got: outputs of {got}")
sys.exit(int(got != expected))
