"""With experts on several ranks, gradients are clipped by the mean of the ranks' norms, which is not the joint norm.

``clip_grad_norm_`` computes a norm on each rank, of all its gradients, and averages these norms over ranks. The joint
norm counts the experts of all ranks. It is larger, so the clipped gradients exceed the limit.
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
from deepspeed.moe.layer import MoE
from deepspeed.pipe import PipelineModule
from torch import nn

MAX_NORM = 1.0


class Layer(nn.Module):
    """A mixture of experts, of which each rank has two."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture = MoE(8, nn.Linear(8, 8), num_experts=4, ep_size=2, k=2, drop_tokens=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of experts alone."""
        output: torch.Tensor = self.mixture(x)[0]
        return output


class Keeping(torch.optim.SGD):
    """An optimizer that changes nothing, and keeps the squared norm of what it is called with."""

    def step(self, closure: None = None) -> None:
        """Keep the squares of experts and of all other gradients."""
        del closure
        self.squares = torch.zeros(2)
        for one in (one for group in self.param_groups for one in group["params"] if one.grad is not None):
            self.squares[int(getattr(one, "allreduce", True))] += one.grad.square().sum()


def run(rank: int, store: str, found: mp.SimpleQueue) -> None:
    """Train one batch on two ranks, and tell the joint norm of all gradients behind the clipping."""
    vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None  # it compiles for minutes
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(io.StringIO()):
        module = PipelineModule([Layer()], num_stages=1, loss_fn=nn.functional.mse_loss, partition_method="uniform")
    optimizer = Keeping(module.parameters(), lr=0.0)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": MAX_NORM,
        "steps_per_print": 100,
    }
    with contextlib.redirect_stdout(io.StringIO()):
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    torch.manual_seed(rank)
    engine.train_batch(iter([(torch.randn(4, 5, 8), 50 * torch.randn(4, 5, 8))]))
    squares = optimizer.squares
    dist.all_reduce(squares[:1])
    if rank == 0:
        found.put(float(squares.sum().sqrt()))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        queue = mp.get_context("spawn").SimpleQueue()
        mp.spawn(run, (f"{folder}/store", queue), nprocs=2)
        norm = queue.get()
    print(f"expected all gradients of a norm of {MAX_NORM} at most")
    print(f"got {norm}")
    sys.exit(int(norm > 1.001 * MAX_NORM))
