"""A V schedule cannot evaluate. Its runtime requires input gradients from a stage without backward.

``schedule.eval`` runs the whole order with backward switched off; where two stages that follow each other are on one
rank, ``get_local_bwd_output`` raises AssertionError. So an evaluation is refused, whatever computes the gradients.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
stages = [PipelineStage(nn.Linear(3, 3), index, 2, torch.device("cpu")) for index in range(2)]
schedule = ScheduleZBVZeroBubble(stages, n_microbatches=2, loss_fn=nn.functional.mse_loss)
try:
    schedule.eval(torch.randn(4, 3), target=torch.randn(4, 3), losses=[])
except AssertionError as error:
    print(f"AssertionError: {error}")
    raise SystemExit(1) from None
finally:
    dist.destroy_process_group()
