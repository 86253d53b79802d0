"""Finds where a graph uses its parameters: which gradients I leaves to W, and which it computes itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from gradconform.torch_releases.edges import lies_over_ranks
from gradconform.torch_releases.node_hooks import is_compiled_autograd_on
from gradconform.torch_releases.saved import products_recomputing, recomputing

from .graph_shape import Graph, Shape, walk
from .use_plan import GroupPlan, Reason, UsePlan, plan_of

__all__ = ["Fallback", "LookUp", "Reason", "Uses", "accumulated_into", "uses_of"]


#: Returns the plan for a shape.
LookUp = Callable[[Shape], UsePlan]


@dataclass(frozen=True, slots=True)
class Fallback:
    """A parameter whose gradient I computes, and why."""

    parameter: Tensor
    reason: Reason

    def __str__(self) -> str:
        """Return it as a sentence."""
        return (
            f"the gradient of a parameter of shape {tuple(self.parameter.shape)} is computed in I: {self.reason.value}"
        )


def accumulated_into(node: Node) -> Tensor:
    """Return the leaf that ``node`` accumulates into."""
    leaf: Tensor = node.variable  # type: ignore[attr-defined] # such nodes alone have it
    return leaf


@dataclass(slots=True)
class Uses:
    """The parameter uses of one graph.

    ``groups`` has the gradients left to W; ``early`` has the nodes that accumulate into parameters whose gradient I
    computes. ``stand_ins`` are the nodes of unnamed parameters that replace weights divided over ranks: those that
    fully_shard gathers. If ``plan.whole`` has a reason, I is one full backward.
    """

    roots: Sequence[GradientEdge]
    nodes: Sequence[Node]
    plan: UsePlan
    stand_ins: frozenset[Node]
    early: dict[Node, Reason] = field(default_factory=dict)
    groups: Sequence[GroupPlan] = ()

    def is_as_planned(self) -> bool:
        """Return whether everything that the plan leaves to W is left to it."""
        return self.groups is self.plan.groups

    def places(self) -> Sequence[int]:
        """Return the places, in the plan, of the edges at which gradients reach the uses of the groups."""
        if self.is_as_planned():
            return range(len(self.plan.edges))
        return sorted({place for group in self.groups for place in group.places})

    def products(self) -> Sequence[int]:
        """Return the places of those edges that lead to products which W may start below."""
        if self.is_as_planned():
            return self.plan.products
        return sorted({place for group in self.groups if group.sides is not None for place in group.places})

    def accumulating(self, group: GroupPlan) -> list[Node]:
        """Return the nodes that accumulate into the parameters of a group."""
        return [self.nodes[one.accumulating] for one in group.parameters]


def uses_of(
    roots: Sequence[GradientEdge],
    inputs: Sequence[Tensor],
    trained: Mapping[int, Tensor],
    *,
    explain: bool = False,
    look_up: LookUp = plan_of,
) -> Uses:
    """Return where W starts for each parameter, and for which of them I computes the gradient.

    The outputs are the ``roots``, ``inputs`` the tensors that need a gradient. ``trained`` are the parameters by their
    ids. With ``explain``, each reason is the first that holds; otherwise any valid one. ``look_up`` returns the plan
    for a shape.
    """
    graph = walk(roots, inputs, trained)
    plan = UsePlan(Reason.COMPILED_AUTOGRAD) if is_compiled_autograd_on() else look_up(graph.shape)
    nodes = graph.nodes
    stand_ins = _stand_ins(graph, trained)
    found = Uses(roots, nodes, plan, stand_ins, dict.fromkeys(stand_ins, Reason.RESHARDED))
    for one in plan.early:
        if one.reason is not None:
            first = explain and one.reason is not Reason.TWO_DEPTHS and _again(nodes, (), one.saving)
            found.early[nodes[one.accumulating]] = Reason.CHECKPOINT if first else one.reason
    again = _again(nodes, *plan.saving)
    found.groups = plan.groups if not again else [one for one in map(partial(_left, found, again), plan.groups) if one]
    return found


def _again(nodes: Sequence[Node], products: Sequence[int], others: Sequence[int]) -> set[int]:
    """Return which nodes would be computed again under checkpointing; their shape does not show it."""
    found = products_recomputing([nodes[number] for number in products])
    found |= recomputing([nodes[number] for number in others])
    return {number for number in (*products, *others) if nodes[number] in found} if found else set()


def _left(found: Uses, again: set[int], group: GroupPlan) -> GroupPlan | None:
    """Return the part of a group that W may compute; I computes the gradients of nodes that would run ``again``."""
    early = [one for one in group.parameters if not again.isdisjoint(one.saving)]
    if not early:
        return group
    found.early.update({found.nodes[one.accumulating]: Reason.CHECKPOINT for one in early})
    kept = tuple(one for one in group.parameters if one not in early)
    return replace(group, parameters=kept, sides=None) if kept else None


def _stand_ins(graph: Graph, trained: Mapping[int, Tensor]) -> frozenset[Node]:
    """Return the nodes of parameters that replace trained ones, which are not in the graph themselves.

    Modules hold the divided parameters, and while fully_shard has gathered them, others replace these.
    """
    here = set(map(id, graph.leaves))
    if here.issuperset(trained) or not any(lies_over_ranks(one) for key, one in trained.items() if key not in here):
        return frozenset()
    others = {id(leaf) for leaf in graph.leaves if id(leaf) not in trained and isinstance(leaf, nn.Parameter)}
    nodes = (node for node in graph.nodes if not node.next_functions and id(getattr(node, "variable", None)) in others)
    return frozenset(nodes) - {graph.nodes[number] for number in graph.shape.inputs}
