"""Autograd's engine and its threads; called below ``torch.autograd.backward``, which checks each of many gradients."""

from __future__ import annotations

import atexit
import functools
import time
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .names import Name

#: Autograd's thread of a device needs the interpreter for a moment after a backward has returned. A process that ends
#: within that moment aborts: 16 of 25 short scripts did on a busy machine, and none did with this wait at the end.
_LAST_MOMENT = 0.1  # seconds

RUN = Name("torch.autograd.graph", ("_engine_run_backward",), "runs a backward")


def accumulate(
    edges: Sequence[GradientEdge], grads: Sequence[Tensor], leaves: Sequence[Tensor], *, retain_graph: bool
) -> None:
    """Run a backward from ``edges`` that accumulates only into ``leaves``.

    The engine compares the shape, dtype and device of each gradient with its edge. If this torch has no such function,
    the public one runs.
    """
    if not RUN.there():
        torch.autograd.backward(list(edges), list(grads), inputs=list(leaves), retain_graph=retain_graph)
        return
    RUN.find()(
        tuple(edges),
        tuple(grads),
        retain_graph,
        False,  # noqa: FBT003 (create_graph, which torch passes by its place)
        tuple(leaves),
        allow_unreachable=True,
        accumulate_grad=True,
    )


@functools.cache
def wait_at_exit() -> None:
    """Make this process wait at its end for autograd's threads of devices other than the CPU."""
    atexit.register(time.sleep, _LAST_MOMENT)
