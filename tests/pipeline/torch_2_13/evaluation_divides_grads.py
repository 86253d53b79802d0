"""An evaluation between two steps divides the accumulated gradients.

``schedule.eval`` switches backward off and ends as a step does all the same, with the reduction: every ``.grad`` is
divided by the number of micro-batches there. No error, no warning.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
module = nn.Linear(3, 3)
x, target = torch.randn(4, 3), torch.randn(4, 3)

stage = PipelineStage(module, 0, 1, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
schedule.step(x, target=target)
expected = module.weight.grad.clone()
schedule.eval(x, target=target, losses=[])
dist.destroy_process_group()

print("expected", expected)
print("got     ", module.weight.grad)
raise SystemExit(not torch.allclose(module.weight.grad, expected))
