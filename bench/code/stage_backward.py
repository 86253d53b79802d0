"""Stage backwards as earlier releases of torch had them: walks over the graph, and what they return."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradconform.reference import split
from gradconform.reference.split import match

# pytorch-182182


def shifted(stage_output: Any, output_grads: Any, input_values: Sequence[Any]) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs that need one, and nothing in the place of the others."""
    given = split.stage_backward(stage_output, output_grads, input_values)
    needs = [isinstance(value, Tensor) and value.requires_grad for value in input_values]
    return tuple(grad for grad, needed in zip(given, needs, strict=True) if needed)


def in_place(stage_output: Any, output_grads: Any, input_values: Sequence[Any]) -> tuple[Tensor | None, ...]:
    """Return one entry for each input, None where it needs no gradient."""
    given = split.stage_backward(stage_output, output_grads, input_values)
    needs = [isinstance(value, Tensor) and value.requires_grad for value in input_values]
    return tuple(grad if needed else None for grad, needed in zip(given, needs, strict=True))


input_shifts = SimpleNamespace(stage_backward=shifted)
input_in_place = SimpleNamespace(stage_backward=in_place)


# pytorch-170277: I keeps what comes in at each node that has parameters, and W starts there.


def _nodes_with_parameters(roots: Sequence[Tensor], weights: Sequence[nn.Parameter]) -> dict[Node, list[nn.Parameter]]:
    """Return the nodes of a graph into which weights go directly, and which go into each."""
    leaves = {get_gradient_edge(weight).node: weight for weight in weights}
    found: dict[Node, list[nn.Parameter]] = {}
    seen, todo = set[Node](), [get_gradient_edge(root).node for root in roots]
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        for below, _ in node.next_functions:
            if below in leaves:
                found.setdefault(node, []).append(leaves[below])
            elif below is not None:
                todo.append(below)
    return found


def _input(
    outputs: Sequence[Any],
    output_grads: Any,
    input_values: Sequence[Any],
    weights: Iterator[nn.Parameter],
    *,
    sums: bool,
) -> tuple[tuple[Tensor | None, ...], list[Any]]:
    roots, starts = match(list(outputs), output_grads)
    trained = [weight for weight in weights if weight.requires_grad]
    nodes = _nodes_with_parameters([root for root in roots if isinstance(root, Tensor)], trained)
    edges = [[GradientEdge(node, slot) for slot in range(len(node._input_metadata))] for node in nodes]  # noqa: SLF001 (how many outputs a node has, torch says nowhere else)
    wanted = [value for value in input_values if isinstance(value, Tensor) and value.requires_grad]
    flat = [edge for some in edges for edge in some]
    if not roots or not (wanted or flat):
        return (None,) * len(input_values), []
    found = torch.autograd.grad(
        roots,  # type: ignore[arg-type] # torch takes both kinds
        [*wanted, *flat],
        starts,  # type: ignore[arg-type] # None for a loss
        allow_unused=True,
        retain_graph=True,
    )
    given, at_nodes = iter(found[: len(wanted)]), iter(found[len(wanted) :])
    context = []
    for (node, own), some in zip(nodes.items(), edges, strict=True):
        came = [(edge, grad) for edge in some if (grad := next(at_nodes)) is not None]
        if sums and len(came) > 1:
            came = [(some[0], torch.stack([grad for _, grad in came]).sum(0))]
        context.append((node, own, [(edge, grad.clone()) for edge, grad in came]))
    needs = [isinstance(value, Tensor) and value.requires_grad for value in input_values]
    return tuple(_owned(next(given)) if needed else None for needed in needs), context


def _owned(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.clone()


def _weight(weights: Iterator[nn.Parameter], context: list[Any]) -> None:
    del weights
    for _, own, came in context:
        if came:
            edges, grads = zip(*came, strict=True)
            torch.autograd.backward(edges, grads, inputs=own, retain_graph=True)
    context.clear()


def _kept_apart(*args: Any) -> Any:
    return _input(*args, sums=False)


def _summed_into_first(*args: Any) -> Any:
    return _input(*args, sums=True)


nodes_apart = SimpleNamespace(stage_backward_input=_kept_apart, stage_backward_weight=_weight)
nodes_summed = SimpleNamespace(stage_backward_input=_summed_into_first, stage_backward_weight=_weight)
