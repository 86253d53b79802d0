"""DeepSpeed 0.19.8: the clipping norm is a mean of the ranks' norms, each with other experts (DeepSpeed 8475).

torchrun --standalone --nproc-per-node 2 expert_norm.py
"""

import importlib
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.runtime.utils import clip_grad_norm_

vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None  # compile no extension
deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
rank, ranks = dist.get_rank(), dist.get_world_size()
layer = MoE(1, torch.nn.Linear(1, 1, bias=False), num_experts=4, ep_size=ranks)
layer.set_deepspeed_parallelism()
experts = layer.deepspeed_moe.experts.deepspeed_experts
for expert, grad in zip(experts, torch.tensor([1.0, 2.0, 3.0, 4.0]).chunk(ranks)[rank], strict=True):
    expert.weight.grad = grad.reshape(1, 1)
got, right = float(clip_grad_norm_(layer.parameters(), 1e9)), 30.0**0.5
sys.stdout.write(f"rank {rank}: expected a norm of {right:.6f} for experts with gradients 1, 2, 3, 4; got {got:.6f}\n")
dist.destroy_process_group()
sys.exit(int(abs(got - right) > 1e-4))
