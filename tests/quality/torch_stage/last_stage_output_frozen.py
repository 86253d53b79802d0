"""A parameter that the last stage returns is detached in place after its backward, and silently frozen.

Micro-batches that come later add nothing to its gradient, and the next step trains without it.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)


class Last(nn.Linear):
    """Returns its prediction and its weight, for the loss to keep small."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override] # a layer names what it is given
        """Return both."""
        return super().forward(x), self.weight


def loss_fn(outputs: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Return the error and the penalty."""
    return (outputs[0] - target).square().mean() + outputs[1].square().mean()


first, last = nn.Linear(5, 5), Last(5, 3)
x, target = torch.randn(4, 5), torch.randn(4, 3)
for rows in range(4):
    loss_fn(last(first(x[rows : rows + 1])), target[rows : rows + 1]).backward()
expected = last.weight.grad / 4
last.zero_grad()
stages = [PipelineStage(module, k, 2, torch.device("cpu")) for k, module in enumerate((first, last))]
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=loss_fn)
schedule.step(x, target=target, return_outputs=False)
dist.destroy_process_group()
print(f"expected: requires_grad=True, gradient of largest element {float(expected.abs().max()):.3f}")
print(f"got: requires_grad={last.weight.requires_grad}, of largest element {float(last.weight.grad.abs().max()):.3f}")
sys.exit(int(not last.weight.requires_grad or not torch.allclose(last.weight.grad, expected)))
