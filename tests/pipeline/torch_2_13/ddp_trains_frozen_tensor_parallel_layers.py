"""DistributedDataParallel trains frozen tensor-parallel layers.

It puts a plain tensor in the place of each DTensor, and has all of them need gradients: a frozen weight beside an
adapter of low rank gets one, and an optimizer that was given all parameters moves it. No error, no warning.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicas", "tensor"))
module = nn.Sequential(nn.Linear(3, 3).requires_grad_(requires_grad=False), nn.Linear(3, 3))
parallelize_module(module, mesh["tensor"], {"0": ColwiseParallel()})
wrapped = DistributedDataParallel(module, device_mesh=mesh["replicas"])
parameters = dict(module.named_parameters())
wrapped(torch.randn(2, 3)).sum().backward()
dist.destroy_process_group()

frozen = parameters["0.weight"]
print("expected a frozen weight that needs no gradient, and none behind a step")
print(f"got      one that needs one: {frozen.requires_grad}; behind a step {frozen.grad}")
raise SystemExit(frozen.requires_grad or frozen.grad is not None)
