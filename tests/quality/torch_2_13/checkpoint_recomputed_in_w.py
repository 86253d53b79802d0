"""I runs a checkpointed forward again, and so does W, more than once: a BatchNorm counts the batch four times.

A full backward runs it again once. A model that is trained by a split schedule is evaluated with other running
statistics than one that is trained by a full backward.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import copy
import sys

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
block = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh())
full, split = copy.deepcopy(block), copy.deepcopy(block)
x, grad = torch.randn(6, 5, requires_grad=True), torch.randn(6, 7)
stage_backward([checkpoint(full, x, use_reentrant=False)], [grad], [x])
_, groups = stage_backward_input([checkpoint(split, x, use_reentrant=False)], [grad], [x], split.parameters())
stage_backward_weight(split.parameters(), groups)
counts = [int(norm.num_batches_tracked) for norm in (full[1], split[1])]
print(f"expected: {counts[0]} batches, as after stage_backward, and running_mean {full[1].running_mean.tolist()}")
print(f"got: {counts[1]} batches, and running_mean {split[1].running_mean.tolist()}")
sys.exit(int(not torch.equal(full[1].running_mean, split[1].running_mean)))
