"""Gradient edges: the starts of a backward whose output was freed, and nodes implemented in Python."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .names import Name

#: Without it, the node of a custom Function dies with its output, even if its edge is held. Not in the oldest releases.
EDGE = Name("torch.autograd.graph:GradientEdge", ("ownership_token",), "keeps the graph of a released output alive")


def lasting_edge(output: Tensor) -> GradientEdge:
    """Return the edge of an output, which keeps its graph alive after the output is freed.

    Without :data:`EDGE`, and for the output of a custom Function, this is the edge of a view, whose node is torch's
    own.
    """
    edge = get_gradient_edge(output)
    if not held_from_above(edge.node) or EDGE.there():
        return edge
    with torch.enable_grad():
        return get_gradient_edge(output.view_as(output))


def held_from_above(node: object) -> bool:
    """Return whether a node is a custom Function's: implemented in Python, it lives only through the nodes above it."""
    return isinstance(node, BackwardCFunction)


#: Torch.compile's name of the function whose backward is compiled code, in every release.
_COMPILED = "CompiledFunctionBackward"


def is_compiled(kind: type) -> bool:
    """Return whether nodes of a ``kind`` run compiled code.

    Such a node may run only once: it frees the tensors that its forward saved, and refuses a backward that retains
    them.
    """
    return kind.__name__ == _COMPILED


def lies_over_ranks(parameter: Tensor) -> bool:
    """Return whether a parameter is a DTensor; False if DTensor was never imported."""
    return hasattr(parameter, "device_mesh")
