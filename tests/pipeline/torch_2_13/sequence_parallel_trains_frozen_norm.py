"""SequenceParallel trains a norm that is frozen.

It makes the parameters anew, and new parameters need gradients: where the style is put on a frozen norm its weight gets
one, and an optimizer moves it. No error, no warning; ColwiseParallel and RowwiseParallel keep what was said.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tensor",))
module = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3)).requires_grad_(requires_grad=False)
plan = {"0": SequenceParallel(sequence_dim=0), "1": ColwiseParallel()}
parallelize_module(module, mesh, plan)
output = module(torch.randn(2, 3))
if output.requires_grad:
    output.sum().backward()
needing = [name for name, parameter in module.named_parameters() if parameter.grad is not None]
dist.destroy_process_group()

print("expected parameters with a gradient: []")
print(f"got      parameters with a gradient: {needing}")
raise SystemExit(needing != [])
