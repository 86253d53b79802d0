"""PipelineEngine.validate_batch_iter raises: it runs in inference mode, where no loss requires a gradient.

The engine's forward, which training shares, asserts that the loss requires one.
"""

# ruff: noqa: E402, T201 (a script: it imports in the order that works, and prints what is expected and what is got)

import sys
import tempfile
from types import ModuleType

# nanotron.logging imports its configuration for a type hint, and that imports nanotron.logging: nanotron issue 191.
stand_in = ModuleType("nanotron.config.config")
stand_in.LoggingArgs = object
sys.modules.update({"nanotron.config": stand_in, "nanotron.config.config": stand_in})
import nanotron.logging

del sys.modules["nanotron.config"], sys.modules["nanotron.config.config"]
import nanotron.config  # noqa: F401 (the engine cannot be imported before it)
import torch
import torch.distributed as dist
from nanotron.parallel.pipeline_parallel.engine import OneForwardOneBackwardPipelineEngine
from torch import nn


class Model(nn.Module):
    """A Linear and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        return {"loss": self.linear(x).square().mean()}


if __name__ == "__main__":
    model, batch = Model(), torch.ones(2, 4)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        with torch.no_grad():
            print(f"expected a loss of {float(model(batch)['loss'])}")
        engine, wrong = OneForwardOneBackwardPipelineEngine(), False
        try:
            found = engine.validate_batch_iter(model, [{"x": batch}], nb_microbatches=1)
        except AssertionError as error:
            wrong = True
            line = error.__traceback__
            while line and line.tb_next:
                line = line.tb_next
            where = f"{line.tb_frame.f_code.co_name}, line {line.tb_lineno}" if line else "it"
            print(f"got an AssertionError of {where}")
        else:
            print(f"got {float(found[0]['loss'])}")
        dist.destroy_process_group()
    sys.exit(int(wrong))
