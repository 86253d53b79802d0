"""An output that is a view makes stage_backward_input raise "Can't detach views in-place".

pytorch #142229; stage.py has looked for views before it detaches since #142237, stage_backward_input has not.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input

torch.manual_seed(0)
linear = nn.Linear(5, 6)


def under_autocast(x: torch.Tensor) -> tuple[torch.Tensor]:
    """Run the layer in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (linear(x),)


endings: dict[str, tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]]] = {
    "a Linear on a 3-D input": (torch.randn(2, 3, 5), lambda x: (linear(x),)),
    "the same under autocast": (torch.randn(2, 3, 5), under_autocast),
    "view": (torch.randn(7, 5), lambda x: (torch.tanh(linear(x)).view(-1, 3, 2),)),
    "transpose": (torch.randn(7, 5), lambda x: (torch.tanh(linear(x)).t(),)),
    "slice": (torch.randn(7, 5), lambda x: (torch.tanh(linear(x))[:, 1:4],)),
    "chunk": (torch.randn(7, 5), lambda x: torch.tanh(linear(x)).chunk(2, dim=1)),
    "unbind": (torch.randn(2, 7, 5), lambda x: torch.tanh(linear(x)).unbind(0)),
    "a slice of the input": (torch.randn(7, 5), lambda x: (x[:, :3], torch.tanh(linear(x)))),
}
raised = 0
for name, (values, forward) in endings.items():
    x = values.requires_grad_()
    grads = tuple(torch.ones_like(output) for output in forward(x))
    (expected,) = torch.autograd.grad(forward(x), x, grads)
    try:
        (got,), _ = stage_backward_input(list(forward(x)), list(grads), [x], linear.parameters())
        seen = f"largest element {float(got.abs().max()):.3f}" if got is not None else "None"
    except RuntimeError as error:
        raised += 1
        seen = f"raised {str(error.__cause__)[:34]}"
    print(f"{name}: expected largest element {float(expected.abs().max()):.3f}, got {seen}")
sys.exit(int(raised > 0))
