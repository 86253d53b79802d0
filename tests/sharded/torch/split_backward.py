"""torch 2.13: the split backward raises for an output of tensor-parallel styles; plain autograd runs the same backward.

``stage_backward_input`` detaches the outputs of a stage in place, and that of ``RowwiseParallel`` is a view.
torchrun --standalone --nproc-per-node 2 split_backward.py
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining._backward import stage_backward_input
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
stage = parallelize_module(
    nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}
)
value, grad = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
(right,) = torch.autograd.grad(stage(value), value, grad)
words = f"rank {dist.get_rank()}: expected an input gradient of norm {right.norm():.4f}, as from autograd"
wrong = True
try:
    (got,), _ = stage_backward_input([stage(value)], [grad], [value], stage.parameters())
except RuntimeError as error:
    sys.stdout.write(f"{words}; got {str(error.__cause__).partition('. ')[0]}\n")
else:
    wrong = not torch.allclose(got, right)
    sys.stdout.write(f"{words}; got {got.norm():.4f}\n")
dist.barrier()
dist.destroy_process_group()
sys.exit(int(wrong))
