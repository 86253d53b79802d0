"""A stage_backward_input that raised leaves its hooks on the graph, and they keep it alive until garbage is collected.

What a hook holds holds the nodes that the hook stands on: a cycle, which is broken only where nothing was raised.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import contextlib
import gc
import sys
import weakref

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input

torch.manual_seed(0)
stage = nn.Linear(5, 3)


def raised() -> weakref.ref[torch.Tensor]:
    """Have a stage_backward_input raise, by an output gradient of another shape, and let go of what it was given."""
    x = torch.randn(7, 5, requires_grad=True)
    with contextlib.suppress(RuntimeError):
        stage_backward_input([torch.tanh(stage(x))], [torch.randn(2, 2)], [x], stage.parameters())
    return weakref.ref(x)


gc.disable()
alive = raised()() is not None
print("expected: the input is gone after the error")
print(f"got: the input is {'alive' if alive else 'gone'}")
sys.exit(int(alive))
