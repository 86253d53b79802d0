"""Gradient edges: what a backward starts at where its output was let go of, and nodes that are Python's own."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .names import Name

#: Without it the node of a custom Function dies with its output, whoever holds its edge. Not in the oldest releases.
EDGE = Name("torch.autograd.graph:GradientEdge", ("ownership_token",), "keeps the graph of a released output alive")


def lasting_edge(output: Tensor) -> GradientEdge:
    """Return the edge of an output, which keeps its graph alive where the output is let go of.

    Without :data:`EDGE`, the edge of a view does, where the output is a custom Function's: its node is torch's own.
    """
    edge = get_gradient_edge(output)
    if not held_from_above(edge.node) or EDGE.there():
        return edge
    with torch.enable_grad():
        return get_gradient_edge(output.view_as(output))


def held_from_above(node: object) -> bool:
    """Tell whether a node is a custom Function's, which lives by what is above it in its graph: it is Python's own."""
    return isinstance(node, BackwardCFunction)


#: What torch.compile calls the function whose backward is that of compiled code, on every release.
_COMPILED = "CompiledFunctionBackward"


def is_compiled(kind: type) -> bool:
    """Tell whether nodes of a ``kind`` are of compiled code.

    One may run once alone: it gives away what its forward saved, and refuses a backward that is to keep it.
    """
    return kind.__name__ == _COMPILED


def lies_over_ranks(parameter: Tensor) -> bool:
    """Tell whether a parameter is a DTensor; where nobody has imported these, none is."""
    return hasattr(parameter, "device_mesh")
