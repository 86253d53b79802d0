"""If gradients accumulate over two steps, those of the first step are divided twice.

By default (``scale_grads=True``) a step divides ``.grad`` by the number of micro-batches at its end: what it has added,
and what was there before. Of a loss that is averaged, as the option is documented for, the first of two steps counts a
half where there are two micro-batches, an eighth where there are eight. No error, no warning. Trainers that met it turn
the option off and divide the loss (pytorch/torchtitan issue 1733).
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
module, mean_square = nn.Linear(3, 3), nn.functional.mse_loss
x, target = torch.randn(4, 3), torch.randn(4, 3)

for _ in range(2):
    mean_square(module(x), target).backward()
expected, module.weight.grad, module.bias.grad = module.weight.grad, None, None

stage = PipelineStage(module, 0, 1, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=mean_square, scale_grads=True)
for _ in range(2):
    schedule.step(x, target=target)
dist.destroy_process_group()

print("expected", expected)
print("got     ", module.weight.grad)
raise SystemExit(not torch.allclose(module.weight.grad, expected))
