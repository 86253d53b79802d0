"""DistributedDataParallel removes the parameters of tensor-parallel layers from the module in the first forward.

A hook before the forward puts DTensors in their place, which the hook behind it does not find among the parameters:
they stay, no parameters. What asks the module for them, as the W of a zero-bubble schedule does, finds none. Where the
first forward is an evaluation the DTensors were made without gradients, so that no later step trains these layers. No
error, no warning.
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
x = torch.randn(2, 3)


def trained(evaluated_first: bool) -> tuple[int, int]:  # noqa: FBT001 (a script)
    """Return how many parameters the module has behind a step, and how many of those before have a gradient."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    parallelize_module(module, mesh["tensor"], {"0": ColwiseParallel()})
    wrapped = DistributedDataParallel(module, device_mesh=mesh["replicas"])
    before = list(wrapped.parameters())  # as an optimizer is given them
    if evaluated_first:
        with torch.no_grad():
            wrapped(x)
    wrapped(x).sum().backward()
    return len(list(wrapped.parameters())), sum(one.grad is not None for one in before)


found = trained(evaluated_first=False), trained(evaluated_first=True)
dist.destroy_process_group()
for told, (left, graded) in zip(("a step", "an evaluation and a step"), found, strict=True):
    print(f"behind {told}: expected 4 parameters, 4 of them with a gradient; got {left}, and {graded} of the first 4")
raise SystemExit(found != ((4, 4), (4, 4)))
