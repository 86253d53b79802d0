"""backward_step accepts lists of outputs and gradients, but starts its backward at the first output only.

What flows back through the others is lost without a word; so is a gradient too few or too many.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from megatron.core import ModelParallelConfig
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel.schedules import backward_step
from torch import nn

torch.manual_seed(0)
linear = nn.Linear(5, 4)
x, grads = torch.randn(7, 5, requires_grad=True), [torch.ones(7, 2), torch.ones(7, 2)]
(expected,) = torch.autograd.grad(linear(x).chunk(2, dim=1), x, grads)
outputs = [linear(x)[:, :2], linear(x)[:, 2:]]
(got,) = backward_step([x], outputs, grads, ModelType.encoder_or_decoder, ModelParallelConfig())
print(f"expected: input gradient, largest element {float(expected.abs().max()):.3f}")
print(f"got: largest element {float(got.abs().max()):.3f}")
sys.exit(int(not torch.allclose(got, expected)))
