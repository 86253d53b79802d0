"""DeepSpeed 0.19.8: with ``mesh_param``, no gradient is summed over the sequence ranks (6868 reports such a mismatch).

``_get_sequence_data_parallel_group`` returns the data-parallel group of the mesh, of one rank here, and the engine then
divides by 1 / 2. With ``mpu=parallel_state_sp`` the same step has the sum.

torchrun --standalone --nproc-per-node 2 mesh_gradients.py
"""

import importlib
import os
import sys
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.runtime.sequence_parallel import parallel_state_sp
from deepspeed.utils import groups

vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None  # compile no extension
deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
rank, ranks = dist.get_rank(), dist.get_world_size()
positions = torch.tensor([[1.0], [2.0], [3.0], [4.0]])


def gradient(**given: Any) -> float:
    """Return the gradient of a weight after the engine's backward of the sum over all positions."""
    groups.mpu = groups.mesh_device = None
    layer = torch.nn.Linear(1, 1, bias=False)
    engine, *_ = deepspeed.initialize(
        model=layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1),
        config={"train_micro_batch_size_per_gpu": 1}, **given,
    )  # fmt: skip
    engine.backward(engine(positions.chunk(ranks)[rank]).sum())
    return float(layer.weight.grad)


parallel_state_sp.initialize_sequence_parallel(ranks)
by_mpu, by_mesh = gradient(mpu=parallel_state_sp), gradient(mesh_param=(1, ranks))
sys.stdout.write(f"rank {rank}: expected a gradient of 10, the sum over all positions; ")
sys.stdout.write(f"got {by_mpu:.6g} with mpu and {by_mesh:.6g} with mesh_param\n")
dist.destroy_process_group()
sys.exit(int(by_mpu == 10.0 != by_mesh))
