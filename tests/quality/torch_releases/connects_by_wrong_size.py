"""A stage sends 8 bytes to connect where its neighbours expect 4: gloo ends the process.

Neighbours exchange nothing else before the first step, so no schedule of several stages runs on a CPU.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

alone = not dist.is_initialized()
if alone:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x, module = torch.randn(7, 5), nn.Linear(5, 3)
stage = PipelineStage(module, 0, 2, torch.device("cpu"), input_args=(x,), output_args=module(x))
messages = getattr(stage, "_get_init_p2p_neighbors_ops", list)()  # not in every release
if alone:
    dist.destroy_process_group()
sizes = sorted({message.tensor.nbytes for message in messages})
print("expected: messages of one size at both ends, or none")
print(f"got: {' and '.join(map(str, sizes))} bytes" if sizes else "got: none")
sys.exit(1 if len(sizes) > 1 else 0)
