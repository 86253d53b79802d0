"""The last stage's outputs are detached in place after I, and W raises if it meets one in the graph.

A penalty that is returned beside the prediction, and used by the loss, is enough, in each of torch's own schedules that
split the backward.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)


class Last(nn.Linear):
    """Returns its prediction and the sum of squares of its weight."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override] # a layer names what it is given
        """Return both."""
        return super().forward(x), self.weight.square().sum(1)


def loss_fn(outputs: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    """Return the error and the penalty."""
    return (outputs[0] - target).square().mean() + outputs[1].square().mean()


first, last = nn.Linear(5, 5), Last(5, 3)
x, target = torch.randn(4, 5), torch.randn(4, 3)
for rows in range(4):
    loss_fn(last(first(x[rows : rows + 1])), target[rows : rows + 1]).backward()
print(f"expected: last.weight, largest element {float(last.weight.grad.abs().max() / 4):.3f}")
last.zero_grad()
stages = [PipelineStage(module, k, 2, torch.device("cpu")) for k, module in enumerate((first, last))]
try:
    ScheduleInterleavedZeroBubble(stages, n_microbatches=4, loss_fn=loss_fn).step(x, target=target)
    print(f"got: last.weight, largest element {float(last.weight.grad.abs().max()):.3f}")
    sys.exit(0)
except RuntimeError as error:
    print(f"got: raised {error}")
    sys.exit(1)
finally:
    dist.destroy_process_group()
