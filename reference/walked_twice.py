"""A stage backward that walks the whole graph twice, in I for the inputs and in W for the parameters: right and slow.

Faults and correct variants are made from it, because it is as plain as a split can be.
:mod:`gradconform.reference.split` is compared with it. Between I and W it keeps the edges of the outputs and copies of
their gradients. The weight context has one group, whose intermediates are the roots of the graph. If a part of the
forward must run again, they are the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradconform.torch_releases.edges import held_from_above

from .gradients import apart, below_loss, input_grads, match, places_of, starts_of
from .recomputed import Root, edge_of, input_pass, recomputes, runs_once, start_at
from .split import gradconform_capabilities, stage_backward

__all__ = ["gradconform_capabilities", "match", "stage_backward", "stage_backward_input", "stage_backward_weight"]


def stage_backward_input(
    stage_outputs_or_loss: Sequence[Root | None],
    output_grads: Sequence[Tensor | None] | None,
    input_values: Sequence[Any],
    weights: Iterator[nn.Parameter],
) -> tuple[tuple[Tensor | None, ...], list[dict[str, Any]]]:
    """Return one gradient per input value, and the context that ``stage_backward_weight`` needs.

    Parameters are not changed. Raises as :func:`stage_backward` does.
    """
    roots, grads = match(list(stage_outputs_or_loss), output_grads)
    parameters = [weight for weight in dict.fromkeys(weights) if weight.requires_grad]
    held: list[GradientEdge] = []
    if recomputes(roots) or runs_once(roots):
        wanted = [value for value in input_values if isinstance(value, Tensor) and value.requires_grad]
        given, edges, starts = input_pass(roots, grads, wanted, parameters)
        found = apart(input_values, given, places_of(grads))
    elif output_grads is None and len(roots) == 1:
        top = edge_of(roots[0])
        edges = [below_loss(top)]
        held = [top] if held_from_above(edges[0].node) else []
        found, starts = input_grads(roots, grads, input_values, edges)
    else:
        edges = [edge_of(root) for root in roots]
        found, _ = input_grads(roots, grads, input_values)
        starts = [start_at(root, grad) for root, grad in zip(roots, grads, strict=True)]
    group = {
        "params": [get_gradient_edge(parameter).node for parameter in parameters],
        "intermediates": [edge.node for edge in edges],
        "grads": [(None,) * edge.output_nr + (start,) for edge, start in zip(edges, starts, strict=True)],
        "edges": [*edges, *held],
    }
    return found, [group]


def stage_backward_weight(
    weights: Iterator[nn.Parameter],
    param_groups: list[dict[str, Any]],
    retain_graph: bool = False,  # noqa: FBT001, FBT002 (torch's own signature)
) -> tuple[Tensor | None, ...]:
    """Accumulate the parameters' gradients into ``.grad`` and return them, one per weight.

    The context is used up: a second call with it raises ``RuntimeError``.
    """
    parameters = list(weights)
    if any("grads" not in group for group in param_groups):
        msg = "this weight context was used before; call stage_backward_input again to get another"
        raise RuntimeError(msg)
    trainable = [parameter for parameter in dict.fromkeys(parameters) if parameter.requires_grad]
    for group in param_groups:
        starts = starts_of(group)
        if starts and trainable:
            edges, grads = zip(*starts, strict=True)
            torch.autograd.backward(edges, grads, inputs=trainable, retain_graph=retain_graph)
        group.pop("edges", None)
    return tuple(parameter.grad for parameter in parameters)
