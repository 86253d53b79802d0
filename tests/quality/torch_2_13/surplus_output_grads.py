"""stage_backward_input silently drops a surplus output gradient; stage_backward refuses the same tuple.

Plain autograd takes it too, so no number is wrong; but one of the two functions is, and the surplus was somebody's.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input

torch.manual_seed(0)
linear = nn.Linear(5, 3)
x, grads = torch.randn(7, 5, requires_grad=True), (torch.randn(7, 3), torch.randn(7, 3))


def refused(backward: Callable[[], object]) -> bool:
    """Tell whether ``backward`` raises."""
    try:
        backward()
    except RuntimeError:
        return True
    return False


plain = refused(lambda: torch.autograd.backward((linear(x),), grads))
expected = refused(lambda: stage_backward((linear(x),), grads, [x]))
print(f"expected: stage_backward refuses it: {expected} (plain autograd: {plain})")
got = refused(lambda: stage_backward_input([linear(x)], list(grads), [x], linear.parameters()))
print(f"got: stage_backward_input refuses it: {got}")
sys.exit(int(expected and not got))
