"""Pairs outputs with their gradients for a backward, and returns its gradients in their own storage."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from gradconform.devices.tensor_facts import shared_place_of

from .recomputed import Root, needs_grad


def match(outputs: Any, output_grads: Any) -> tuple[list[Root], list[Tensor | None]]:
    """Return every output that needs a gradient with its gradient; skip those whose gradient is None."""
    if output_grads is None:
        roots: list[Root] = [output for output in _flatten(outputs) if needs_grad(output)]
        shapes = [tuple(root.shape) if isinstance(root, Tensor) else ("an edge",) for root in roots]
        if any(shapes):
            msg = f"there are no output gradients for outputs of shapes {shapes}; only a 0-d loss goes without"
            raise ValueError(msg)
        return roots, [None] * len(roots)
    pairs = [(output, grad) for output, grad in _pairs(outputs, output_grads) if needs_grad(output)]
    for output, grad in pairs:
        if grad is not None and not isinstance(grad, Tensor):
            msg = f"an output gradient is {grad!r}; expected a tensor or None"
            raise ValueError(msg)
        if grad is not None and isinstance(output, Tensor) and grad.shape != output.shape:
            msg = f"an output gradient has shape {tuple(grad.shape)}; expected {tuple(output.shape)}, the output's"
            raise ValueError(msg)
    kept = [(output, grad) for output, grad in pairs if grad is not None]
    return [output for output, _ in kept], [grad for _, grad in kept]


def _pairs(outputs: Any, grads: Any) -> list[tuple[Any, Any]]:
    if isinstance(outputs, (Tensor, GradientEdge)):  # an edge is a tuple as well
        return [(outputs, grads)]
    if isinstance(outputs, dict):
        if not isinstance(grads, dict) or set(grads) != set(outputs):
            msg = f"output gradients are {_describe(grads)}; expected a dict with the keys {sorted(outputs)}"
            raise ValueError(msg)
        return [pair for key, output in outputs.items() for pair in _pairs(output, grads[key])]
    if isinstance(outputs, (tuple, list)):
        if not isinstance(grads, (tuple, list)) or len(grads) != len(outputs):
            msg = f"output gradients are {_describe(grads)}; expected a tuple of {len(outputs)}, one per output"
            raise ValueError(msg)
        return [pair for output, grad in zip(outputs, grads, strict=True) for pair in _pairs(output, grad)]
    return [(outputs, grads)]


def _describe(grads: Any) -> str:
    if isinstance(grads, dict):
        return f"a dict with the keys {sorted(grads)}"
    return f"a {type(grads).__name__}" + (f" of {len(grads)}" if isinstance(grads, (tuple, list)) else "")


def _flatten(outputs: Any) -> Iterator[Root]:
    if isinstance(outputs, (Tensor, GradientEdge)):
        yield outputs
    elif isinstance(outputs, (tuple, list)):
        for output in outputs:
            yield from _flatten(output)


def input_grads(
    roots: Sequence[Root],
    grads: Sequence[Tensor | None],
    input_values: Sequence[Any],
    edges: Sequence[GradientEdge] = (),
) -> tuple[tuple[Tensor | None, ...], list[Tensor]]:
    """Return the gradient of every input value, in its own storage, and that of each edge; the graph is kept."""
    wanted: list[Any] = [value for value in input_values if isinstance(value, Tensor) and value.requires_grad]
    if not roots or not (wanted or edges):
        return (None,) * len(input_values), []
    found = torch.autograd.grad(
        roots,  # type: ignore[arg-type] # as above
        [*wanted, *edges],
        grads,
        retain_graph=True,
        allow_unused=True,
    )
    starts = list(found[len(wanted) :])
    return apart(input_values, found[: len(wanted)], places_of([*grads, *starts])), starts


def places_of(grads: Iterable[Tensor | None]) -> set[int]:
    """Return the memory addresses of gradients."""
    return {shared_place_of(grad) for grad in grads if grad is not None}


def apart(
    input_values: Sequence[Any], found: Sequence[Tensor | None], taken: Collection[int]
) -> tuple[Tensor | None, ...]:
    """Return each input value's entry of ``found``, in memory shared with no other entry and not in ``taken``.

    ``x + y`` passes the output gradient on unchanged, to both; scaling one of them in place would change all.
    """
    remaining = iter(found)
    taken = set(taken)
    result: list[Tensor | None] = []
    for value in input_values:
        grad = next(remaining) if isinstance(value, Tensor) and value.requires_grad else None
        if grad is not None:
            # Sends refuse non-contiguous tensors, and a transposed use of the input gives its gradient as a view. An
            # output gradient that requires a gradient may be returned unchanged: its history is the caller's.
            own = grad.detach()
            laid_out = own.contiguous() if value.is_contiguous() and own.layout == torch.strided else own
            grad = laid_out.clone() if shared_place_of(laid_out) in taken else laid_out
            taken.add(shared_place_of(grad))
        result.append(grad)
    return tuple(result)


def starts_of(group: dict[str, Any]) -> list[tuple[GradientEdge, Tensor]]:
    """Return the start of W, each edge with its gradient, and remove it from a group of a weight context."""
    return [
        (GradientEdge(node, slot), grad)
        for node, grads in zip(group.pop("intermediates"), group.pop("grads"), strict=True)
        for slot, grad in enumerate(grads)
        if grad is not None
    ]


def below_loss(edge: GradientEdge) -> GradientEdge:
    """Return the edge through which all of a loss's gradient flows, as deep as there is only one path.

    W starts there: between I and W torch's PipelineStage detaches the outputs in place. After that, the computation of
    the loss from them cannot be walked again.
    """
    while True:
        children = [GradientEdge(node, slot) for node, slot in edge.node.next_functions if node is not None]
        if len(children) != 1 or not children[0].node.next_functions:
            return edge
        edge = children[0]
