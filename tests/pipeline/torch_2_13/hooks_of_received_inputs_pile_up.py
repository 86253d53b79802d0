"""A hook that a stage sets on a received tensor fires once more in every step.

Receive buffers are made once, and a stage is given them as they are: a hook that a forward sets on its input stays
there, and fires in the backward of every later step as well. What hooks count or change is wrong from the second step
on; no error, no warning. https://github.com/pytorch/pytorch/issues/185331
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Hooked(nn.Module):
    """A Linear that counts the backwards of its input by a hook on it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.fired = nn.Linear(3, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(self.count)
        y: Tensor = self.linear(x)
        return y

    def count(self, grad: Tensor) -> None:
        del grad
        self.fired += 1


def rank_of(rank: int, meeting: str, fired: Tensor) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(meeting, 2))
    torch.manual_seed(0)
    module = Hooked()
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    x, target = torch.randn(4, 3), torch.randn(4, 3)
    for step in range(3):
        schedule.step(*((x,) if rank == 0 else ()), target=target if rank else None)
        if rank:
            fired[step] = module.fired - fired.sum()
    dist.destroy_process_group()


fired = torch.zeros(3, dtype=torch.int64).share_memory_()
with tempfile.TemporaryDirectory() as folder:
    mp.start_processes(rank_of, (f"{folder}/meeting", fired), nprocs=2, start_method="fork")
print("expected one call for each of two micro-batches in every step: [2, 2, 2]")
print(f"got      {fired.tolist()}")
raise SystemExit(fired.tolist() != [2, 2, 2])
