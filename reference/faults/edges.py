"""Faults of edges: wrong only if an output was freed and replaced by its gradient edge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from gradconform.adapter import StageSpec
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target
from gradconform.trees import as_tuple, flattened, map_leaves

from .alterations import (
    Backwards,
    Functions,
    Grads,
    alters,
    backwards,
    flat,
    keeping,
    per_session,
    with_session,
)
from .registry import fault


def _roots(edit: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]) -> Functions:
    """Return functions whose B and I start at the roots from ``edit(roots, grads)`` if a root is an edge."""

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        listed, given = flat(outputs, grads)
        if not isinstance(given, list) or not any(isinstance(root, GradientEdge) for root in listed):
            return run(outputs, grads, inputs)
        return run(*edit(listed, given), inputs)

    return backwards(around)


@fault(
    "edges.full.output-chunks",
    "edges.split.output-chunks",
    "edges.dropped.output-chunks",
    cause=({"kind": "outputs_missing", "slots": [1]}, "output_grads_summed", "same_as_other_output"),
)
@alters(_roots)
def first_output_of_an_edges_node(roots: list[Any], grads: list[Any]) -> tuple[list[Any], list[Any]]:
    """The output number of an edge is lost: its gradient flows into the first output of its node."""
    return [root._replace(output_nr=0) if isinstance(root, GradientEdge) else root for root in roots], grads


@fault("edges.full.two-outputs", "edges.split.two-outputs", cause={"kind": "outputs_missing", "slots": [1]})
@alters(_roots)
def first_edge_only(roots: list[Any], grads: list[Any]) -> tuple[list[Any], list[Any]]:
    """Of several edges, the backward starts only at the first."""
    first = next(place for place, root in enumerate(roots) if isinstance(root, GradientEdge))
    return roots, [
        None if isinstance(root, GradientEdge) and place != first else grad
        for place, (root, grad) in enumerate(zip(roots, grads, strict=True))
    ]


@fault("edges.beside.two-outputs-*", "edges.beside.five-outputs-*", cause="outputs_missing")
@alters(_roots)
def tensors_beside_an_edge_dropped(roots: list[Any], grads: list[Any]) -> tuple[list[Any], list[Any]]:
    """If one root is an edge, the roots that are tensors are dropped."""
    return roots, [grad if isinstance(root, GradientEdge) else None for root, grad in zip(roots, grads, strict=True)]


@fault("edges.full.mask-output", "edges.split.mask-output", raises=True)
@alters(_roots)
def none_among_the_roots_refused(roots: list[Any], grads: list[Any]) -> tuple[list[Any], list[Any]]:
    """None instead of an output is refused."""
    if any(root is None for root in roots):
        msg = "a root is None"
        raise TypeError(msg)
    return roots, grads


@fault("edges.none.first-*", raises=True)
@alters(_roots)
def none_shifts_the_gradients_of_edges(roots: list[Any], grads: list[Any]) -> tuple[list[Any], list[Any]]:
    """None is filtered out of the gradients of edges, so that the later ones move up."""
    given = [grad for grad in grads if grad is not None]
    return roots, [*given, *[None] * (len(grads) - len(given))]


@fault("edges.full.output-is-*", "edges.split.output-is-*", cause=("not_computed", "outputs_missing"))
@alters(_roots)
def edges_of_leaves_dropped(roots: list[Any], grads: list[Any]) -> tuple[list[Any], list[Any]]:
    """An edge to the gradient accumulator of an input or a parameter is dropped."""
    bare = [isinstance(root, GradientEdge) and not root.node.next_functions for root in roots]
    return roots, [None if left else grad for grad, left in zip(grads, bare, strict=True)]


@fault("edges.absent.*")
@alters(with_session)
class OnesMadeUpForAnEdge(Backwards):
    """The backward of an edge without a gradient starts with ones of its output's shape."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.ones: dict[int, Any] = {}

    def release_outputs(self, mb: int, unsent: tuple[int, ...]) -> None:
        self.ones[mb] = map_leaves(torch.ones_like, as_tuple(self._forwards[mb][1]))
        super().release_outputs(mb, unsent)

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        return backward(mb, self.ones.get(mb) if output_grads is None else output_grads)


@fault("edges.in_turn.*", cause=("never_accumulated", "not_computed", "missing"))
def edges_once_tensors_from_then_on() -> Target:
    """The first micro-batch decides whether roots are edges or tensors; later roots of the other kind are dropped."""

    def make(_: StageSpec) -> Functions:
        seen: list[bool] = []

        def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
            listed, given = flat(outputs, grads)
            if grads is None or not isinstance(given, list):
                return run(outputs, grads, inputs)
            kinds = [isinstance(root, GradientEdge) for root in listed]
            seen[:] = seen or [any(kinds)]
            kept = [grad if kind is seen[0] else None for grad, kind in zip(given, kinds, strict=True)]
            return run(listed, kept, inputs)

        return backwards(around)

    return per_session(make)


@fault("edges.released.mlp", "edges.released.split")
def edges_kept_in_a_list() -> Target:
    """Edges, and their graphs with them, are kept in a list of the session."""
    return keeping(lambda outputs, _, __: [root for root in flattened(outputs) if isinstance(root, GradientEdge)])


class _Beside(FunctionsSession):
    """A session that keeps outputs and their edges."""

    def release_outputs(self, mb: int, unsent: tuple[int, ...]) -> None:
        self.sent = [*getattr(self, "sent", ()), self._forwards[mb][1]]
        super().release_outputs(mb, unsent)


@fault("edges.outputs.*", "edges.released.*")
def outputs_kept_beside_their_edges() -> Target:
    """Outputs are kept with their edges, for a log."""
    return with_session(_Beside)
