"""A zero-bubble schedule accepts stages compiled in place, and its split backward raises during the step.

It refuses, before it runs, a module that ``torch.compile`` wrapped, and does not know one that ``compile`` changed.
I keeps the graph for W, which the backward of compiled code refuses: it gives what the forward saved away as it runs.
Autograd's full backward of the same stage works, and so does the split one where the stage is not compiled.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight


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


torch.manual_seed(0)
stage = Stage()


def run() -> tuple[torch.Tensor, torch.Tensor]:
    """Run the stage forward; return its input and output."""
    x = torch.ones(4, 3, requires_grad=True)
    return x, stage(x)


def split() -> RuntimeError | None:
    """Run I and W of the stage; return what was raised."""
    x, y = run()
    try:
        _, groups = stage_backward_input([y], [torch.ones_like(y)], [x], stage.parameters())
        stage_backward_weight(stage.parameters(), groups)
    except RuntimeError as error:
        return error
    return None


assert split() is None
stage.compile(backend="aot_eager")
run()[1].sum().backward()
error = split()
print(f"expected gradients, got {error and (error.__cause__ or error)!r}")
raise SystemExit(error is not None)
