"""Autograd's engine, called below ``torch.autograd.backward``, which first checks each of many gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .names import Name

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
