"""A stage whose neighbour is on its own rank sends messages to itself, which gloo refuses: the step raises.

Up to 2.8 it sends what it computed, and from 2.9 on what connects neighbours, before the first step: no schedule of
several stages a rank runs on a CPU where two of them are neighbours.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

torch.manual_seed(0)
x, target, layers = torch.randn(4, 5), torch.randn(4, 5), [nn.Linear(5, 5), nn.Linear(5, 5)]
device, loss = torch.device("cpu"), nn.MSELoss(reduction="sum")
alone = not dist.is_initialized()
if alone:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
stages = [
    PipelineStage(layer, number, 2, device, input_args=(x[:2],), output_args=layer(x[:2]))
    for number, layer in enumerate(layers)
]
print("expected: a step of two stages on one rank")
try:
    ScheduleInterleaved1F1B(stages, 2, loss).step(x, target=target)
    print("got: a step")
    code = 0
except (RuntimeError, ValueError) as error:
    print(f"got: raised {error!r:.300}")
    code = 1
if alone:
    dist.destroy_process_group()
sys.exit(code)
