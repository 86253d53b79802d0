"""A stage backward of our own, full and split: the proof that the contract can be met.

The functions have the signatures of ``torch.distributed.pipelining._backward``. ``stage_backward_input`` walks the
graph for the inputs and keeps it; ``stage_backward_weight`` walks it again for the parameters. Between the two only
gradient edges and copies of the output gradients are kept: the outputs themselves may be freed, and what held the
output gradients may be received into. The weight context has torch's form (a list of ``param_groups``), with one group
whose intermediates are the roots of the graph, or, where a part of the forward is to be run again, the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradconform.torch_releases.edges import EDGE, held_from_above

from .recomputed import Root, edge_of, input_pass, needs_grad, recomputes, start_at

#: What these functions claim beyond what plain autograd does.
gradconform_capabilities = {"none_output_grad": True, "edge_roots": EDGE.there()}


def stage_backward(
    stage_output: Any, output_grads: Any, input_values: Sequence[Any], outputs_with_grads_idxs: list[int] | None = None
) -> tuple[Tensor | None, ...]:
    """Run the full backward: return one gradient per input value, accumulate the parameters' into ``.grad``.

    ``output_grads`` mirrors ``stage_output``; it is None for a loss. None for an output means that no gradient flows
    through it. A ``GradientEdge`` stands for an output that was let go of, as in torch 2.15's runtime. Raises
    ``ValueError`` where structure or shape differ, before anything is changed.
    """
    del outputs_with_grads_idxs
    roots, grads = match(stage_output, output_grads)
    needing = [value for value in input_values if isinstance(value, Tensor) and value.requires_grad]
    # A parameter passed as an input accumulates as a parameter, so its own gradient takes a walk of its own.
    apart = any(isinstance(value, nn.Parameter) for value in needing)
    found, _ = _input_grads(roots, grads, input_values) if apart else ((), ())
    passed_on = [value for value in needing if not isinstance(value, nn.Parameter)]
    before = [value.grad for value in passed_on]
    try:
        for value in passed_on:
            value.grad = None
        if roots:
            torch.autograd.backward(roots, grads)  # type: ignore[arg-type] # torch takes both kinds in one list
        return found if apart else _apart(input_values, [value.grad for value in needing], grads)
    finally:
        for value, grad in zip(passed_on, before, strict=True):
            value.grad = grad


def stage_backward_input(
    stage_outputs_or_loss: Sequence[Root | None],
    output_grads: Sequence[Tensor | None] | None,
    input_values: Sequence[Any],
    weights: Iterator[nn.Parameter],
) -> tuple[tuple[Tensor | None, ...], list[dict[str, Any]]]:
    """Return one gradient per input value, and the context that ``stage_backward_weight`` needs.

    Parameters are left alone. Raises as :func:`stage_backward` does.
    """
    roots, grads = match(list(stage_outputs_or_loss), output_grads)
    parameters = [weight for weight in weights if weight.requires_grad]
    held: list[GradientEdge] = []
    if recomputes(roots):
        wanted = [value for value in input_values if isinstance(value, Tensor) and value.requires_grad]
        given, edges, starts = input_pass(roots, grads, wanted, parameters)
        found = _apart(input_values, given, grads)
    elif output_grads is None and len(roots) == 1:
        top = edge_of(roots[0])
        edges = [_below_loss(top)]
        held = [top] if held_from_above(edges[0].node) else []
        found, starts = _input_grads(roots, grads, input_values, edges)
    else:
        edges = [edge_of(root) for root in roots]
        found, _ = _input_grads(roots, grads, input_values)
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
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    for group in param_groups:
        nodes, tuples = group.pop("intermediates"), group.pop("grads")
        starts = [
            (GradientEdge(node, slot), grad)
            for node, grads in zip(nodes, tuples, strict=True)
            for slot, grad in enumerate(grads)
            if grad is not None
        ]
        if starts and trainable:
            edges, grads = zip(*starts, strict=True)
            torch.autograd.backward(edges, grads, inputs=trainable, retain_graph=retain_graph)
        group.pop("edges", None)
    return tuple(parameter.grad for parameter in parameters)


def match(outputs: Any, output_grads: Any) -> tuple[list[Root], list[Tensor | None]]:
    """Pair every output that needs a gradient with its gradient; leave out those whose gradient is None."""
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


def _pairs(outputs: Any, grads: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(outputs, GradientEdge):  # a tuple as well
        yield outputs, grads
    elif isinstance(outputs, dict):
        if not isinstance(grads, dict) or set(grads) != set(outputs):
            msg = f"output gradients are {_describe(grads)}; expected a dict with the keys {sorted(outputs)}"
            raise ValueError(msg)
        for key, output in outputs.items():
            yield from _pairs(output, grads[key])
    elif isinstance(outputs, (tuple, list)):
        if not isinstance(grads, (tuple, list)) or len(grads) != len(outputs):
            msg = f"output gradients are {_describe(grads)}; expected a tuple of {len(outputs)}, one per output"
            raise ValueError(msg)
        for output, grad in zip(outputs, grads, strict=True):
            yield from _pairs(output, grad)
    else:
        yield outputs, grads


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


def _input_grads(
    roots: Sequence[Root],
    grads: Sequence[Tensor | None],
    input_values: Sequence[Any],
    edges: Sequence[GradientEdge] = (),
) -> tuple[tuple[Tensor | None, ...], list[Tensor]]:
    """Return the gradient of every input value, in storage of its own, and that of each edge; the graph is kept."""
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
    return _apart(input_values, found[: len(wanted)], [*grads, *starts]), starts


def _below_loss(edge: GradientEdge) -> GradientEdge:
    """Return the edge that all of a loss's gradient flows through, as far down as there is one way only.

    W starts there: between I and W torch's PipelineStage detaches the outputs in place, after which what computed the
    loss from them cannot be walked again.
    """
    while True:
        children = [GradientEdge(node, slot) for node, slot in edge.node.next_functions if node is not None]
        if len(children) != 1 or not children[0].node.next_functions:
            return edge
        edge = children[0]


def _apart(
    input_values: Sequence[Any], found: Sequence[Tensor | None], output_grads: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """Give every input value its entry of ``found``, in storage shared with no other entry and no output gradient.

    ``x + y`` passes the output gradient on as it is, to both; whoever scales one of them in place would change all.
    """
    remaining = iter(found)
    taken = {_place(grad) for grad in output_grads if grad is not None}
    result: list[Tensor | None] = []
    for value in input_values:
        grad = next(remaining) if isinstance(value, Tensor) and value.requires_grad else None
        if grad is not None:
            # Sends refuse what is not contiguous, and a transposed use of the input gives its gradient as a view.
            laid_out = grad.contiguous() if value.is_contiguous() and grad.layout == torch.strided else grad
            grad = laid_out.clone() if _place(laid_out) in taken else laid_out
            taken.add(_place(grad))
        result.append(grad)
    return tuple(result)


def _place(tensor: Tensor) -> int:
    """Return where the values lie; of what has no storage (sparse, lazy), where the object does."""
    stored = tensor.layout == torch.strided and tensor.data_ptr() != 0
    return tensor.untyped_storage().data_ptr() if stored else id(tensor)
