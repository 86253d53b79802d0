"""After a frozen first stage, zero-bubble schedules leave the next stage's parameters without gradients.

Stage 0 is frozen and its input needs no gradient, so what it hands to stage 1 needs none either. stage_backward_input
of stage 1 then finds no path to an input, makes no param_groups, and its W has nothing to do. No error, no warning.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
frozen, trained = nn.Linear(3, 3).requires_grad_(requires_grad=False), nn.Linear(3, 3)
x, target = torch.randn(4, 3), torch.randn(4, 3)

mean_square = nn.functional.mse_loss
for mb_x, mb_target in zip(x.chunk(2), target.chunk(2), strict=True):
    mean_square(trained(frozen(mb_x)), mb_target).backward()
expected, trained.weight.grad = trained.weight.grad, None

stages = [PipelineStage(module, index, 2, torch.device("cpu")) for index, module in enumerate((frozen, trained))]
schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=2, loss_fn=mean_square, scale_grads=False)
schedule.step(x, target=target)
dist.destroy_process_group()

print("expected", expected)
print("got     ", trained.weight.grad)
raise SystemExit(trained.weight.grad is None or not torch.allclose(trained.weight.grad, expected))
