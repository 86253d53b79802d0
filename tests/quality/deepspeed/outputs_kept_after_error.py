"""A backward pass that raises leaves outputs and graph in their buffer."""

# ruff: noqa: T201 (a script: printing is what it is for; schedules call these names on the engine)

import contextlib
import importlib
import os
import sys
import weakref

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
optimizer = torch.optim.SGD(stage.parameters(), lr=0.0)
config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
engine, *_ = deepspeed.initialize(model=PipelineModule([stage], num_stages=1), optimizer=optimizer, config=config)
engine.num_stages, engine.stage_id = 3, 1  # as on the second of three ranks
engine._reserve_pipe_buffers(1)
engine.pipe_buffers["inputs"][0] = torch.randn(7, 5, requires_grad=True)
engine._exec_forward_pass(0)
alive = weakref.ref(engine.pipe_buffers["outputs"][0])
engine.grad_layer = torch.ones(3, 7)
with contextlib.suppress(RuntimeError):
    engine._exec_backward_pass(0)
print("expected: the outputs are gone after the backward pass, however it ends")
print(f"got: {'gone' if alive() is None else 'they are alive'}")
sys.exit(int(alive() is not None))
