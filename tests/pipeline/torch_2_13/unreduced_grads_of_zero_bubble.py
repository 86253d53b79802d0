"""Zero-bubble schedules never reduce the gradients of a stage under DistributedDataParallel.

The reducer acts on hooks of the parameters, and stage_backward_weight writes ``.grad`` by itself, so that none fires:
each replica keeps its own gradients, and trains on by itself. Only stage 0, whose W is a full backward, is reduced. No
error, no warning.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble
from torch.nn.parallel import DistributedDataParallel


def replica(rank: int, meeting: str, same: torch.Tensor) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2, store=dist.FileStore(meeting, 2))
    torch.manual_seed(0)
    modules = [nn.Linear(3, 3) for _ in range(2)]
    alone = [dist.new_group([one]) for one in range(2)][rank]
    wrapped = [DistributedDataParallel(module) for module in modules]
    x, target = torch.randn(2, 4, 3)[rank], torch.randn(2, 4, 3)[rank]

    stages = [PipelineStage(one, index, 2, torch.device("cpu"), group=alone) for index, one in enumerate(wrapped)]
    mean_square = nn.functional.mse_loss
    schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=2, loss_fn=mean_square, scale_grads=False)
    schedule.step(x, target=target)
    for index, module in enumerate(modules):
        of_ranks = [torch.empty(3, 3) for _ in range(2)]
        dist.all_gather(of_ranks, module.weight.grad)
        same[index] = torch.equal(*of_ranks)
    # No destroy_process_group: a reducer that is left as the group's last owner joins gloo's threads with the GIL held,
    # and one of them may wait for the GIL to let go of a tensor.


same = torch.zeros(2, dtype=torch.bool).share_memory_()
with tempfile.TemporaryDirectory() as folder:
    mp.start_processes(replica, (f"{folder}/meeting", same), nprocs=2, start_method="fork")
print("expected the same gradients on both replicas: stage 0 True, stage 1 True")
print(f"got      the same gradients on both replicas: stage 0 {bool(same[0])}, stage 1 {bool(same[1])}")
raise SystemExit(not bool(same.all()))
