"""Graphs under activation checkpointing: each backward over one runs the forward again, with its updates.

A backward over the inputs and another over the parameters would run it twice, but plain autograd runs it once.
Checkpointing that re-enters autograd also refuses a backward over selected tensors. So I runs the single full backward
of these graphs, and W adds its parameter gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradconform.torch_releases.edges import is_compiled, lasting_edge
from gradconform.torch_releases.saved import recomputing

#: The start of a backward: an output, or the edge of one that was freed.
Root = Tensor | GradientEdge


def edge_of(root: Root) -> GradientEdge:
    """Return the edge of a root; an edge keeps its graph alive."""
    return lasting_edge(root) if isinstance(root, Tensor) else root


def start_at(root: Root, grad: Tensor | None) -> Tensor:
    """Return W's start gradient at a root: a copy, or one for a loss, which has no gradient and is not an edge."""
    return torch.ones_like(root) if grad is None and isinstance(root, Tensor) else grad.clone()  # type: ignore[union-attr] # an edge always has one


def needs_grad(output: object) -> bool:
    """Return whether a backward can start there."""
    return isinstance(output, GradientEdge) or (isinstance(output, Tensor) and output.requires_grad)


def recomputes(roots: Iterable[Root]) -> bool:
    """Return whether a backward from ``roots`` runs a part of the forward again.

    A node re-enters autograd, or has saved tensors that must be computed again.
    """
    nodes = nodes_behind(roots)
    for node in nodes:
        if "Checkpoint" in node.name():
            return True
    return bool(recomputing(nodes))


def nodes_behind(roots: Iterable[Root]) -> list[Node]:
    """Return every node of the graph below ``roots`` once."""
    found = list(dict.fromkeys(edge_of(root).node for root in roots))
    seen = set(found)
    for node in found:  # it grows
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def runs_once(roots: Iterable[Root]) -> bool:
    """Return whether a backward from ``roots`` runs compiled code, which refuses to keep its graph."""
    return any(is_compiled(type(node)) for node in nodes_behind(roots))


def input_pass(
    roots: Sequence[Root], grads: Sequence[Tensor | None], inputs: Sequence[Tensor], parameters: Iterable[Tensor]
) -> tuple[tuple[Tensor | None, ...], list[GradientEdge], list[Tensor]]:
    """Return the gradient of every input, and the start of W: the edges of the parameters, each with its gradient."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    found = one_backward(roots, grads, [*inputs, *trained]) if roots else (None,) * (len(inputs) + len(trained))
    passed = {id(value) for value in inputs}
    kept = [(one, grad) for one, grad in zip(trained, found[len(inputs) :], strict=True) if grad is not None]
    starts = [grad.clone() if id(one) in passed else grad for one, grad in kept]  # the caller owns returned gradients
    return found[: len(inputs)], [get_gradient_edge(one) for one, _ in kept], starts


def one_backward(
    roots: Sequence[Root],
    grads: Sequence[Tensor | None],
    leaves: Sequence[Tensor],
    *,
    keep_graph: bool = False,
    hooks: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return every leaf's gradient from one full backward; its ``.grad`` stays, and its hooks are not called.

    With ``hooks``, hooks on tensors are called, as ``torch.autograd.grad`` does. Leaves that are not named accumulate,
    as in any backward.
    """
    with contextlib.ExitStack() as apart:
        for leaf in {id(leaf): leaf for leaf in leaves}.values():
            apart.enter_context(_set_apart(leaf, hooks=hooks))
        torch.autograd.backward(roots, grads, retain_graph=keep_graph)  # type: ignore[arg-type] # torch takes both kinds
        return tuple(leaf.grad for leaf in leaves)


@contextlib.contextmanager
def silenced(leaves: Iterable[Tensor]) -> Iterator[None]:
    """Disable the hooks of these leaves within the context: their computed gradients accumulate later."""
    called = [leaf._backward_hooks for leaf in leaves if leaf._backward_hooks]  # noqa: SLF001 (no other way)
    with _emptied(called):
        yield


@contextlib.contextmanager
def _emptied(tables: Sequence[dict[int, Any]]) -> Iterator[None]:
    held = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, before in zip(tables, held, strict=True):
            table.update(before)


@contextlib.contextmanager
def _set_apart(leaf: Tensor, *, hooks: bool) -> Iterator[None]:
    """Remove the gradient and hooks of ``leaf`` within the context, except tensor hooks with ``hooks``; restore all."""
    on_tensors = None if hooks else leaf._backward_hooks  # noqa: SLF001 (there is no other way to silence them)
    called = [table for table in (on_tensors, leaf._post_accumulate_grad_hooks) if table]  # noqa: SLF001 (as above)
    grad, leaf.grad = leaf.grad, None
    try:
        with _emptied(called):
            yield
    finally:
        leaf.grad = grad
