"""If fully_shard reshards after the forward, zero-bubble schedules drop the weight gradients of a stage.

stage_backward_input is given the parameters of the stage before its backward gathers them: those that fully_shard puts
in their place while they are sharded, which are not in the graph. It finds no param_groups for them, and W has nothing
to do. Each layer is wrapped, then the stage, with the defaults of fully_shard. No error, no warning.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
modules, mean_square = [nn.Sequential(nn.Linear(3, 3)) for _ in range(2)], nn.functional.mse_loss
x, target = torch.randn(4, 3), torch.randn(4, 3)

for mb_x, mb_target in zip(x.chunk(2), target.chunk(2), strict=True):
    mean_square(modules[1](modules[0](mb_x)), mb_target).backward()
expected = [module[0].weight.grad for module in modules]

mesh = init_device_mesh("cpu", (1,))
for module in modules:
    module.zero_grad()
    fully_shard(module[0], mesh=mesh)
    fully_shard(module, mesh=mesh)
stages = [PipelineStage(module, index, 2, torch.device("cpu")) for index, module in enumerate(modules)]
schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=2, loss_fn=mean_square, scale_grads=False)
schedule.step(x, target=target)
got = [None if (grad := module[0].weight.grad) is None else grad.full_tensor() for module in modules]
dist.destroy_process_group()

for index in range(2):
    print(f"stage {index}: expected {expected[index]}")
    print(f"stage {index}: got      {got[index]}")
right = [one is not None and torch.allclose(one, other) for one, other in zip(got, expected, strict=True)]
raise SystemExit(not all(right))
