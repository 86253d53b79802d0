"""An input backward that raises leaves its hooks on the graph, in a cycle that only the garbage collector ends."""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import contextlib
import gc
import sys
import weakref

import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_input
from torch import nn

torch.manual_seed(0)


class Held:
    """What the graph holds in place of a saved tensor, so that a weak reference tells when it let go."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Hold the tensor."""
        self.tensor = tensor


held: list[weakref.ref[Held]] = []


def pack(tensor: torch.Tensor) -> Held:
    """Note what is saved."""
    one = Held(tensor.detach())
    held.append(weakref.ref(one))
    return one


linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
gc.disable()
with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
    output = torch.tanh(linear(x))
with contextlib.suppress(RuntimeError):
    stage_backward_input([output], [torch.ones(3, 7)], [x], linear.parameters())
del output
seen = sum(one() is not None for one in held)
gc.enable()
print("expected: the graph is gone once its caller has let go of it, 0 saved tensors alive")
print(f"got: {seen} saved tensors alive")
sys.exit(int(seen > 0))
