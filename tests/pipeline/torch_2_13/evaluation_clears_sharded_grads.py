"""A stage under fully_shard loses its accumulated gradients if an evaluation runs between steps.

Going from training to evaluation and back, the schedule infers metadata anew, and what it clears behind that is every
``.grad`` of a module under fully_shard: what came of the inference, and what was there before. No error, no warning.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
module, mean_square = nn.Linear(3, 3), nn.functional.mse_loss
x, target = torch.randn(4, 3), torch.randn(4, 3)

for _ in range(2):
    for mb_x, mb_target in zip(x.chunk(2), target.chunk(2), strict=True):
        mean_square(module(mb_x), mb_target).backward()
expected, module.weight.grad, module.bias.grad = module.weight.grad, None, None

fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
stage = PipelineStage(module, 0, 1, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=mean_square, scale_grads=False)
schedule.step(x, target=target)
schedule.eval(x, target=target, losses=[])
schedule.step(x, target=target)
got = module.weight.grad.full_tensor()
dist.destroy_process_group()

print("expected", expected)
print("got     ", got)
raise SystemExit(not torch.allclose(got, expected))
