"""With the edge of a sent output too, stage_backward_weight walks a freed graph if a weight is at two depths.

torch 2.15's runtime lets go of an output once it is sent, and starts at its gradient edge. The walk from the outer use
to the inner one crosses the layer between, as it does from the output itself; to hold nothing else makes no difference.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import gc
import sys

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

torch.manual_seed(0)
outer, between = nn.Linear(5, 5), nn.Linear(5, 5)
stage = nn.ModuleList([outer, between])
data, grad = torch.randn(7, 5), torch.randn(7, 5)


def forward(x: torch.Tensor) -> torch.Tensor:
    """Apply outer, between and outer again."""
    output: torch.Tensor = outer(torch.tanh(between(torch.tanh(outer(x)))))
    return output


def weight_context(*, held: bool) -> tuple[list[dict[str, object]], list[object]]:
    """Start I at the edge of an output that is gone; return what W needs, and edge and argument where they are held."""
    x = data.clone().requires_grad_()
    edge: GradientEdge = get_gradient_edge(forward(x))
    _, groups = stage_backward_input([edge], [grad], [x], stage.parameters())
    return groups, [edge, x] if held else []


(expected,) = torch.autograd.grad(forward(data.clone().requires_grad_()), outer.weight, grad)
raised = 0
for held in (True, False):
    print(f"expected: outer.weight, largest element {float(expected.abs().max()):.3f}")
    stage.zero_grad()
    groups, kept = weight_context(held=held)
    gc.collect()
    try:
        stage_backward_weight(stage.parameters(), groups)
        print(f"got: {outer.weight.grad}")
    except RuntimeError as error:
        print(f"got, with {len(kept)} held: raised {error}")
        raised += 1
sys.exit(int(raised > 0))
