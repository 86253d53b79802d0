"""A stage with BatchNorm counts three batches for two micro-batches.

Metadata is inferred by running each stage once more before the first step, in train mode and on the real module: its
buffers keep what came of that. The first stage counts its first micro-batch twice; every other stage is run on
uninitialised memory, which goes into its running mean and variance.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleaved1F1B

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
norms = [nn.BatchNorm1d(3) for _ in range(2)]
x, target = torch.randn(8, 3), torch.randn(8, 3)

plain = copy.deepcopy(norms)
for mb_x in x.chunk(2):
    plain[1](plain[0](mb_x))

stages = [PipelineStage(norm, index, 2, torch.device("cpu")) for index, norm in enumerate(norms)]
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=nn.functional.mse_loss)
schedule.step(x, target=target)
dist.destroy_process_group()

wrong = 0
for index, (expected, got) in enumerate(zip(plain, norms, strict=True)):
    for name, value in expected.named_buffers():
        print(f"stage {index} {name}: expected {value}, got {got.get_buffer(name)}")
        wrong += not torch.allclose(got.get_buffer(name), value)
raise SystemExit(wrong > 0)
