"""The backward pass raises for a floating output that needs no gradient, but not for an integer one.

Masks and statistics of the model's own dtype go from stage to stage like this (#3895).
"""

# ruff: noqa: T201 (a script: printing is what it is for; schedules call these names on the engine)

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


class Stage(nn.Linear):
    """Returns a statistic of its input beside its result."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override] # a layer names what it is given
        """Return both."""
        return super().forward(x), x.detach().mean(1)


stage = Stage(5, 3)
optimizer = torch.optim.SGD(stage.parameters(), lr=0.0)
config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
engine, *_ = deepspeed.initialize(model=PipelineModule([stage], num_stages=1), optimizer=optimizer, config=config)
engine.num_stages, engine.stage_id = 3, 1  # as on the second of three ranks
engine._reserve_pipe_buffers(1)
engine.pipe_buffers["inputs"][0] = torch.randn(7, 5, requires_grad=True)
engine._exec_forward_pass(0)
engine.grad_layer = (torch.ones(7, 3), torch.zeros(7))  # what it receives: one buffer per floating output
print("expected: a gradient of the weight")
try:
    engine._exec_backward_pass(0)
    print("got: a gradient")
    sys.exit(0)
except RuntimeError as error:
    print(f"got: raised {error}")
    sys.exit(1)
