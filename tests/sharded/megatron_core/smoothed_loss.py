"""Megatron-core 0.16.1: label smoothing takes a rank's words for the whole vocabulary (Megatron-LM 7452, number 1).

torchrun --standalone --nproc-per-node 2 smoothed_loss.py
"""

import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

SMOOTHING, WORDS = 0.1, 8

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
torch.manual_seed(3)
scores = torch.randn(5, 2, WORDS, dtype=torch.float64, requires_grad=True)
labels = torch.randint(0, WORDS, (5, 2))

# The formula in the function's comment, for K = 8 words.
alpha = SMOOTHING * WORDS / (WORDS - 1)
logs = scores.log_softmax(-1)
whole = -(1 - alpha) * logs.gather(-1, labels[..., None])[..., 0] - alpha * logs.mean(-1)
(right,) = torch.autograd.grad(whole.sum(), scores)

part = scores.detach().chunk(ranks, -1)[rank].clone().requires_grad_()
loss = vocab_parallel_cross_entropy(part, labels, SMOOTHING)
loss.sum().backward()
error = (part.grad - right.chunk(ranks, -1)[rank]).abs().max().item()
sys.stdout.write(
    f"rank {rank}: expected loss {whole[0, 0].item():.6f}, got {loss[0, 0].item():.6f}; gradient off by {error:.3g}\n"
)
dist.destroy_process_group()
sys.exit(int(error > 1e-9))
