"""Stage backwards as earlier releases of torch had them: walks over the graph, and what they return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradconform.reference import split
from gradconform.reference.gradients import match

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


# pytorch-170277 and 180952: I keeps what comes in at each node that has parameters, and W starts there.


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What W has to do: the edges that it starts at, with their gradients, and the parameters that it is for."""

    edges: tuple[GradientEdge, ...]
    grads: tuple[Tensor | None, ...]
    parameters: list[nn.Parameter]


class Nodes:
    """A split by the nodes that parameters go into.

    ``sums`` adds what comes in at the outputs of a node up in the first. ``each_alone`` starts at each node for all its
    parameters; else a parameter of several nodes, of which one may lie below another, is computed from the outputs.
    """

    def __init__(self, *, sums: bool = False, each_alone: bool = False) -> None:
        """Keep what is done otherwise."""
        self.sums, self.each_alone = sums, each_alone

    def stage_backward_input(
        self, outputs: Sequence[Any], output_grads: Any, input_values: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[tuple[Tensor | None, ...], list[_Waiting]]:
        """Return the gradients of the inputs, and what W needs."""
        roots, starts = match(list(outputs), output_grads)
        ends = [root if isinstance(root, GradientEdge) else get_gradient_edge(root) for root in roots]
        nodes = _nodes_with_parameters(ends, [weight for weight in weights if weight.requires_grad])
        edges = {node: [GradientEdge(node, slot) for slot in range(len(node._input_metadata))] for node in nodes}  # noqa: SLF001 (how many outputs a node has is said nowhere else)
        needs = [isinstance(value, Tensor) and value.requires_grad for value in input_values]
        wanted = [value for value, needed in zip(input_values, needs, strict=True) if needed]
        asked = [*wanted, *(edge for some in edges.values() for edge in some)]
        if not roots or not asked:
            return (None,) * len(input_values), []
        found = torch.autograd.grad(
            roots,  # type: ignore[arg-type] # torch takes both kinds in one list
            asked,
            starts,
            allow_unused=True,
            retain_graph=True,
        )
        given = iter(found[: len(wanted)])
        came = iter(found[len(wanted) :])
        at_nodes = {node: [(edge, next(came)) for edge in some] for node, some in edges.items()}
        waiting = list(self._at_nodes(nodes, at_nodes))
        if several := [] if self.each_alone else _of_several(nodes):
            waiting.append(_Waiting(tuple(ends), tuple(None if g is None else g.clone() for g in starts), several))
        return tuple(_owned(next(given)) if needed else None for needed in needs), waiting

    def _at_nodes(
        self,
        nodes: Mapping[Node, list[nn.Parameter]],
        at_nodes: Mapping[Node, list[tuple[GradientEdge, Any]]],
    ) -> Iterator[_Waiting]:
        several = [] if self.each_alone else _of_several(nodes)
        for node, parameters in nodes.items():
            own = [one for one in parameters if not any(one is other for other in several)]
            pairs = [(edge, grad.clone()) for edge, grad in at_nodes[node] if grad is not None]
            if self.sums and len({grad.shape for _, grad in pairs}) == 1:
                pairs = [(at_nodes[node][0][0], torch.stack([grad for _, grad in pairs]).sum(0))]
            if own and pairs:
                yield _Waiting(tuple(edge for edge, _ in pairs), tuple(grad for _, grad in pairs), own)

    def stage_backward_weight(self, weights: Iterator[nn.Parameter], context: list[_Waiting]) -> None:
        """Start at each of the nodes."""
        del weights
        for one in context:
            torch.autograd.backward(one.edges, one.grads, inputs=one.parameters, retain_graph=True)
        context.clear()


def _nodes_with_parameters(
    roots: Sequence[GradientEdge], weights: Sequence[nn.Parameter]
) -> dict[Node, list[nn.Parameter]]:
    """Return the nodes of a graph into which weights go directly, and which go into each."""
    leaves = {get_gradient_edge(weight).node: weight for weight in weights}
    found: dict[Node, list[nn.Parameter]] = {}
    seen, todo = set[Node](), [root.node for root in roots]
    while todo:
        node = todo.pop()
        if node in leaves:  # an output that is a parameter
            found[node] = [leaves[node]]
        elif node not in seen:
            seen.add(node)
            for below, _ in node.next_functions:
                if below in leaves:
                    found.setdefault(node, []).append(leaves[below])
                elif below is not None:
                    todo.append(below)
    return found


def _of_several(nodes: Mapping[Node, list[nn.Parameter]]) -> list[nn.Parameter]:
    """Return the parameters that go into more than one node."""
    counted = Counter(id(one) for parameters in nodes.values() for one in {id(p): p for p in parameters}.values())
    every = {id(one): one for parameters in nodes.values() for one in parameters}
    return [one for key, one in every.items() if counted[key] > 1]


def _owned(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.clone()


nodes_apart = Nodes()
nodes_summed = Nodes(sums=True)
nodes_each_alone = Nodes(each_alone=True)
