"""A zero-bubble schedule takes stages that were compiled in place, and raises amid the step.

It refuses, before it runs, a module that ``torch.compile`` wrapped, and does not know one that ``compile`` changed.
I keeps the graph for W, which the backward of compiled code refuses: it gives what the forward saved away as it runs.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleInterleavedZeroBubble


class Stage(nn.Module):
    """A Linear and what is behind it."""

    def __init__(self) -> None:
        """Make the Linear."""
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many numbers as came."""
        y: torch.Tensor = torch.tanh(self.linear(x)).square()
        return y


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
modules, mean_square = [Stage(), Stage()], nn.functional.mse_loss
x, target = torch.randn(4, 3), torch.randn(4, 3)

for mb_x, mb_target in zip(x.chunk(2), target.chunk(2), strict=True):
    mean_square(modules[1](modules[0](mb_x)), mb_target).backward()
expected = [module.linear.weight.grad for module in modules]

for module in modules:
    module.zero_grad()
    module.compile(backend="aot_eager")
stages = [PipelineStage(module, index, 2, torch.device("cpu")) for index, module in enumerate(modules)]
schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=2, loss_fn=mean_square, scale_grads=False)
try:
    schedule.step(x, target=target)
except RuntimeError as error:
    print(f"expected {expected}, got RuntimeError: {error.__cause__ or error}")
    raise SystemExit(1) from None
finally:
    dist.destroy_process_group()

got = [module.linear.weight.grad for module in modules]
print("expected", expected)
print("got     ", got)
raise SystemExit(not all(torch.allclose(one, other) for one, other in zip(got, expected, strict=True)))
