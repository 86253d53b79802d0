"""The last stage's backward pass returns before it frees the outputs: they stay in their buffer, logits and all."""

# ruff: noqa: T201 (a script: printing is what it is for; schedules call these names on the engine)

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
model = PipelineModule([stage], num_stages=1, loss_fn=lambda outputs, target: (outputs - target).square().mean())
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
engine._compute_loss, engine.fwd_outputs, engine.total_loss, engine.total_additional_losses = True, [], None, None
engine._reserve_pipe_buffers(1)
engine.pipe_buffers["inputs"][0] = torch.randn(7, 5, requires_grad=True)
engine.pipe_buffers["labels"][0] = torch.randn(7, 3)
engine._exec_forward_pass(0)
alive = weakref.ref(engine.pipe_buffers["outputs"][0])
engine._exec_backward_pass(0)
print("expected: the outputs are gone after the backward pass, as on every other stage")
print(f"got: {'gone' if alive() is None else 'they are alive'}")
sys.exit(int(alive() is not None))
