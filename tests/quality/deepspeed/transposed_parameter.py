"""deepspeed.initialize raises for a model with a non-contiguous parameter, which it views as bytes to broadcast.

A transposed weight is one.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import importlib
import os
import sys

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0")
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from torch import nn

torch.manual_seed(0)
vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None  # it compiles for minutes
if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)

stage = nn.Linear(5, 3)
stage.weight = nn.Parameter(torch.randn(5, 3).t())
optimizer = torch.optim.SGD(stage.parameters(), lr=0.0)
config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
print("expected: an engine for a model with a transposed weight")
try:
    deepspeed.initialize(model=PipelineModule([stage], num_stages=1), optimizer=optimizer, config=config)
    print("got: an engine")
    sys.exit(0)
except RuntimeError as error:
    print(f"got: raised {error}")
    sys.exit(1)
