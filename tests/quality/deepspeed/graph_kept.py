"""With several outputs, backward keeps the graphs of all but the last: it runs with retain_graph=True.

What they saved stays until the outputs themselves are dropped, though each graph has been walked.
"""

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


class Held:
    """What the graph holds in place of a saved tensor, so that a weak reference tells when it let go."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Hold the tensor."""
        self.tensor = tensor


held: list[weakref.ref[Held]] = []


def pack(tensor: torch.Tensor) -> Held:
    """Note what is saved."""
    one = Held(tensor.detach())
    held.append(weakref.ref(one))
    return one


class Stage(nn.Module):
    """Three layers beside each other."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(5, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return one output of each."""
        return tuple(torch.tanh(layer(x)) for layer in self.layers)


stage = Stage()
with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.0)
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
    engine, *_ = deepspeed.initialize(model=PipelineModule([stage], num_stages=1), optimizer=optimizer, config=config)
    engine.num_stages, engine.stage_id = 3, 1  # as on the second of three ranks
    engine._reserve_pipe_buffers(1)
    engine.pipe_buffers["inputs"][0] = torch.randn(7, 5, requires_grad=True)
    engine._exec_forward_pass(0)
outputs = engine.pipe_buffers["outputs"][0]
engine.grad_layer = tuple(torch.ones(7, 3) for _ in outputs)
engine._exec_backward_pass(0)
seen = sum(one() is not None for one in held)
print("expected: 0 saved tensors after the backward pass")
print(f"got: {seen}")
sys.exit(int(seen > 0))
