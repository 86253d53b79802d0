"""A stage with a checkpoint that re-enters raises in every schedule, also in those that do not split.

Its metadata is inferred by torch.autograd.grad, which such a checkpoint refuses; the backward of GPipe, 1F1B and the
like is one that it takes. Only a stage whose input needs no gradient is spared.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=True)


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
modules, mean_square = [nn.Linear(3, 3), Checkpointed(3, 3)], nn.functional.mse_loss
x, target = torch.randn(4, 3), torch.randn(4, 3)
mean_square(modules[1](modules[0](x)), target).backward()
print("expected no error, as of plain autograd: gradient", modules[1].weight.grad)

stages = [PipelineStage(module, index, 2, torch.device("cpu")) for index, module in enumerate(modules)]
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=mean_square)
try:
    schedule.step(x, target=target)
except RuntimeError as error:
    if "use_reentrant" not in str(error):  # of gloo, say, where torch cannot connect the stages of one rank
        raise
    print(f"got RuntimeError: {error}")
    raise SystemExit(1) from None
finally:
    dist.destroy_process_group()
