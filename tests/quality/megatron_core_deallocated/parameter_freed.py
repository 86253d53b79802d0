"""With deallocate_pipeline_outputs, a parameter that a stage returns first is freed and loses its values."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from megatron.core.pipeline_parallel.schedules import deallocate_output_tensor
from torch import nn

torch.manual_seed(0)


class Stage(nn.Linear):
    """Returns its weight, for the stage behind to use as well, beside what is computed with it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override] # a layer names what it is given
        """Return both."""
        return self.weight, super().forward(x)


stage = Stage(5, 3)
expected = tuple(stage.weight.shape)
outputs = stage(torch.randn(7, 5))
deallocate_output_tensor(outputs[0], deallocate_pipeline_outputs=True)  # as the schedule does after its send
print(f"expected: a weight of shape {expected}")
print(f"got: a weight of shape {tuple(stage.weight.shape)}")
sys.exit(int(tuple(stage.weight.shape) != expected))
