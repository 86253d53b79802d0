"""All stages clip their gradients by the norm of the first stage's alone.

``clip_grad_norm_`` counts what the first rank of ``get_model_parallel_group`` has, and of the others only parameters
that say that they are split by tensor parallelism. That group of the grid of a pipeline has all of its stages.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import contextlib
import importlib
import io
import logging
import os
import sys
import tempfile

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0")
import deepspeed
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from deepspeed.pipe import PipelineModule
from torch import nn

MAX_NORM = 1.0


class Keeping(torch.optim.SGD):
    """An optimizer that changes nothing, and keeps the gradients that it is called with."""

    def step(self, closure: None = None) -> None:
        """Keep them."""
        del closure
        self.square = sum(one.grad.square().sum() for group in self.param_groups for one in group["params"])


def run(rank: int, store: str, found: mp.SimpleQueue) -> None:
    """Train one batch on two stages, and tell the norm of all gradients behind the clipping."""
    vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None  # it compiles for minutes
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(0)
    layers = [nn.Linear(3, 3), nn.Linear(3, 3)]
    x, target = torch.randn(4, 3), 10 * torch.randn(4, 3)
    with contextlib.redirect_stdout(io.StringIO()):
        module = PipelineModule(layers, num_stages=2, loss_fn=nn.functional.mse_loss, partition_method="uniform")
    optimizer = Keeping(layers[rank].parameters(), lr=0.0)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": MAX_NORM,
        "steps_per_print": 100,
    }
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    engine.train_batch(iter([(x, target)]))
    square = optimizer.square
    dist.all_reduce(square)
    if rank == 0:
        found.put(float(square.sqrt()))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        queue = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run, (f"{folder}/store", queue), nprocs=2)
        norm = queue.get()
    print(f"expected all gradients of a norm of {MAX_NORM} at most")
    print(f"got {norm}")
    sys.exit(int(norm > 1.001 * MAX_NORM))
