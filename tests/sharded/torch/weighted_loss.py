"""torch 2.13: the backward of a loss-parallel cross entropy with weights reads the weight of an ignored label.

``_nll_loss_and_log_softmax_backward`` gathers the weights by labels of which an ignored one is -100. Without
``loss_parallel`` the same call works.

torchrun --standalone --nproc-per-node 2 weighted_loss.py
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional as F

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(3)
scores, weights, labels = torch.randn(3, 8), torch.rand(8), torch.tensor([1, 5, -100])
whole = scores.clone().requires_grad_()
F.cross_entropy(whole, labels, weights).backward()
divided = distribute_tensor(scores, mesh, [Shard(1)]).requires_grad_()
wrong = 0
with loss_parallel():
    loss = F.cross_entropy(divided, labels, weights)
    try:
        loss.backward()
        got = str(divided.grad.full_tensor()[0].tolist())
    except RuntimeError as error:
        wrong, got = 1, f"RuntimeError: {error}"
sys.stdout.write(f"rank {dist.get_rank()}: expected a gradient that begins with {whole.grad[0].tolist()}, got {got}\n")
dist.destroy_process_group()
sys.exit(wrong)
