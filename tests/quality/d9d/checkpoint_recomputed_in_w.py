"""I runs a checkpointed forward again, and so does W: a BatchNorm counts the batch three times.

A full backward runs it again once. A model that is trained by a split schedule is evaluated with other running
statistics than one that is trained by a full backward.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import copy
import sys

import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_input, stage_backward_weight
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
block = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh())
full, split = copy.deepcopy(block), copy.deepcopy(block)
x, grad = torch.randn(6, 5, requires_grad=True), torch.randn(6, 7)
checkpoint(full, x, use_reentrant=False).backward(grad)
result = stage_backward_input([checkpoint(split, x, use_reentrant=False)], [grad], [x], split.parameters())
stage_backward_weight(split.parameters(), result.param_groups)
counts = [int(norm.num_batches_tracked) for norm in (full[1], split[1])]
print(f"expected: {counts[0]} batches, as after a full backward, and running_mean {full[1].running_mean.tolist()}")
print(f"got: {counts[1]} batches, and running_mean {split[1].running_mean.tolist()}")
sys.exit(int(not torch.equal(full[1].running_mean, split[1].running_mean)))
