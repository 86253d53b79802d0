"""If only one replica uses a parameter, fully_shard gives its reduction another size on each replica.

Behind a backward, it reduces the parameters that have a gradient on its own rank. Where data decide which layers run,
ranks then call reduce_scatter with other sizes. On gloo, a rank aborts. DistributedDataParallel has
``find_unused_parameters`` for this.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def replica(rank: int, meeting: str, total: torch.Tensor) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(meeting, 2))
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(2))
    layers.forward = lambda x: sum(layer(x) for layer in (layers if rank == 0 else layers[:1]))
    fully_shard(layers, mesh=init_device_mesh("cpu", (2,)))
    layers(torch.ones(1, 4)).sum().backward()
    grad = layers[1].weight.grad.full_tensor()
    if rank == 0:
        total.copy_(grad.sum())
    dist.destroy_process_group()


total, ended = torch.zeros(()).share_memory_(), ""
with tempfile.TemporaryDirectory() as folder:
    try:
        mp.start_processes(replica, (f"{folder}/meeting", total), nprocs=2, start_method="fork")
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as error:
        ended = f"{type(error).__name__} in one of the replicas"
print("expected a gradient that adds up to 8, the mean of 16 and 0")
print(f"got      {ended or float(total)}")
raise SystemExit(bool(ended) or float(total) != 8.0)
