"""Where a graph uses its parameters: what of their gradients I leaves to W, and what it computes itself.

One walk finds the nodes that lead to an input. Those of them that have a parameter below along a way that leads to no
input are *uses*: the gradient that comes in there is all that the parameter's gradient needs. W can start there, and
asks for that parameter alone, unless the engine would meet it a second time further down.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from gradconform.torch_releases.edges import held_from_above, is_compiled, lies_over_ranks
from gradconform.torch_releases.saved import saves_to_recompute


class Reason(enum.Enum):
    """Why I computes the gradient of a parameter itself, and W but accumulates it."""

    VECTOR = "what would be kept until W is larger than the gradient"
    TWO_DEPTHS = "it is used again below one of its uses, where W would meet it twice"
    CHECKPOINT = "activation checkpointing would compute its use again in W"
    MODULE_HOOK = "a hook of a module stands at its use, and is for whole backwards alone"
    NO_GRADIENT = "no gradient comes to its use, which may give zeros all the same"
    REENTRANT = "activation checkpointing that re-enters autograd refuses a backward that is told what to compute"
    COMPILED = "compiled code runs its backward once, and refuses one that keeps what it needs"
    RESHARDED = "it stands in for a weight that lies over ranks, and may be taken away again before W"


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


#: Stands among uses for the outputs that lead to no input: W starts there with their own gradients.
OUTPUTS = None
#: Nodes at which W can start, or :data:`OUTPUTS`.
Starts = frozenset[Node | None]


def accumulated_into(node: Node) -> Tensor:
    """Return the leaf that ``node`` accumulates into."""
    leaf: Tensor = node.variable  # type: ignore[attr-defined] # such nodes alone have it
    return leaf


@dataclass(slots=True)
class Uses:
    """What one walk finds.

    ``kept`` has the nodes that accumulate into parameters by the uses that their W starts at, most uses first;
    ``early`` those whose gradient I computes. ``whole`` says why neither is there, where I is one full backward.
    ``stand_ins`` are the nodes of parameters that nobody has named, in the place of weights that lie over ranks: what
    fully_shard gathers.
    """

    roots: Sequence[GradientEdge]
    whole: Reason | None = None
    stand_ins: frozenset[Node] = frozenset()
    kept: dict[Starts, list[Node]] = field(default_factory=dict)
    early: dict[Node, Reason] = field(default_factory=dict)
    #: The edges at which a gradient comes to each use; none for :data:`OUTPUTS`.
    edges: dict[Node | None, list[GradientEdge]] = field(default_factory=dict)
    #: What keeps uses alive that live by what is above them.
    keepers: dict[Node | None, list[Node | GradientEdge]] = field(default_factory=dict)
    #: The roots that lead to no input, by their place.
    apart: list[int] = field(default_factory=list)


#: Stands for what is no parameter by itself.
_MATRIX = torch.empty(0, 0)


class _Graph:
    """The graph behind some roots, walked once."""

    def __init__(self, roots: Sequence[GradientEdge], inputs: Iterable[Node], trained: Mapping[int, Tensor]) -> None:
        self.roots = roots
        self.below: dict[Node, tuple[tuple[Node | None, int], ...]] = {}
        self.above: dict[Node, list[Node]] = {}
        #: The nodes that accumulate into trained parameters, and those that accumulate into others.
        self.accumulating: list[Node] = []
        self.others: list[Node] = []
        waiting = [edge.node for edge in roots]
        below, above = self.below, self.above
        while waiting:
            node = waiting.pop()
            if node in below:
                continue
            below[node] = children = node.next_functions
            for child, _ in children:
                if child is not None:
                    users = above.get(child)
                    if users is None:
                        above[child] = [node]
                        waiting.append(child)
                    else:
                        users.append(node)
            leaf = None if children else getattr(node, "variable", None)
            if leaf is not None:
                (self.accumulating if id(leaf) in trained else self.others).append(node)
        #: The nodes that lead to an input; that of an input is one of them only if it leads to another.
        self.leading = self.all_above(inputs)
        self._again: dict[Node, bool] = {}

    def again(self, node: Node) -> bool:
        """Tell whether ``node`` would be computed again under checkpointing."""
        if node not in self._again:
            self._again[node] = saves_to_recompute(node)
        return self._again[node]

    def all_above(self, nodes: Iterable[Node]) -> set[Node]:
        """Return the nodes from which one of ``nodes`` is met, going down at least one edge."""
        found: set[Node] = set()
        waiting = list(nodes)
        while waiting:
            for user in self.above.get(waiting.pop(), ()):
                if user not in found:
                    found.add(user)
                    waiting.append(user)
        return found

    def way_up(self, accumulating: Node, ends: set[Node]) -> tuple[set[Node | None], set[Node]]:
        """Return the uses of a parameter, and the nodes between them and it."""
        uses: set[Node | None] = set()
        between = {accumulating}
        waiting = [accumulating]
        while waiting:
            node = waiting.pop()
            if node in ends:
                uses.add(OUTPUTS)
            for user in self.above.get(node, ()):
                if user in self.leading:
                    uses.add(user)
                elif user not in between:
                    between.add(user)
                    waiting.append(user)
        return uses, between

    def edges_into(self, use: Node) -> list[GradientEdge]:
        """Return the edges at which gradients come to ``use``."""
        numbers = {edge.output_nr for edge in self.roots if edge.node is use}
        for user in self.above.get(use, ()):
            numbers.update(number for child, number in self.below[user] if child is use)
        return [GradientEdge(use, number) for number in sorted(numbers)]

    def has_vectors_alone(self, use: Node) -> bool:
        """Tell whether parameters of one dimension at most are all that ``use`` has beside what leads to an input."""
        own = [child for child, _ in self.below[use] if child is not None and child not in self.leading]
        return all(getattr(child, "variable", _MATRIX).dim() <= 1 for child in own)

    def keepers(self, use: Node | None, apart: Iterable[int]) -> list[Node | GradientEdge]:
        """Return what keeps a use alive: a custom Function's node lives by what is above it, outputs by their edges."""
        if use is OUTPUTS:
            return [self.roots[place] for place in apart]
        while held_from_above(use):
            users = self.above.get(use)
            if not users:
                return [edge for edge in self.roots if edge.node is use]
            use = users[0]
        return [use]

    def whole(self) -> Reason | None:
        """Return why nothing but one full backward can be run, None where it can."""
        kinds = {type(node) for node in self.below}
        if any("Checkpoint" in kind.__name__ for kind in kinds):
            return Reason.REENTRANT
        return Reason.COMPILED if any(map(is_compiled, kinds)) else None

    def stand_ins(self, inputs: Iterable[Node], trained: Mapping[int, Tensor]) -> frozenset[Node]:
        """Return the nodes of parameters that stand in for trained ones, which are not in the graph themselves.

        Modules have those that lie over ranks, and while fully_shard has gathered them others in their place.
        """
        here = {id(accumulated_into(node)) for node in self.accumulating}
        if not any(lies_over_ranks(one) for number, one in trained.items() if number not in here):
            return frozenset()
        others = {node for node in self.others if isinstance(accumulated_into(node), nn.Parameter)}
        return frozenset(others - set(inputs))


def uses_of(roots: Sequence[GradientEdge], inputs: Sequence[Node], trained: Mapping[int, Tensor]) -> Uses:
    """Return where W starts for each parameter, and for which of them I computes the gradient.

    The outputs are the ``roots``, ``inputs`` the nodes of the inputs that need a gradient; ``trained`` are the
    parameters by their ids.
    """
    graph = _Graph(roots, inputs, trained)
    stand_ins = graph.stand_ins(inputs, trained)
    if whole := graph.whole():
        return Uses(roots, whole, stand_ins)
    apart = [place for place, edge in enumerate(roots) if edge.node not in graph.leading]
    found = Uses(roots, stand_ins=stand_ins, early=dict.fromkeys(stand_ins, Reason.RESHARDED), apart=apart)
    ends = {roots[place].node for place in found.apart}
    everything = set() if graph.leading else set(graph.below)
    outputs: set[Node | None] = {OUTPUTS}
    kept: dict[Starts, list[Node]] = {}
    for node in graph.accumulating:
        uses, between = graph.way_up(node, ends) if graph.leading else (outputs, everything)
        reason = _reason(graph, uses, between, ends)
        if reason is not None:
            found.early[node] = reason
        elif uses:
            kept.setdefault(frozenset(uses), []).append(node)
    found.kept = dict(sorted(kept.items(), key=lambda one: -len(one[0])))
    for use in {use: None for uses in kept for use in uses}:
        found.edges[use] = [] if use is OUTPUTS else graph.edges_into(use)
        found.keepers[use] = graph.keepers(use, found.apart)
    return found


def _reason(graph: _Graph, uses: set[Node | None], between: set[Node], ends: set[Node]) -> Reason | None:
    """Return why a parameter's gradient is computed in I, None where W can compute it."""
    nodes = {use for use in uses if use is not OUTPUTS}
    if len(uses) > 1:
        below = nodes | (ends if OUTPUTS in uses else set())
        if graph.all_above(below) & nodes:
            return Reason.TWO_DEPTHS
    executed = nodes | between
    if any(graph.again(node) for node in executed):
        return Reason.CHECKPOINT
    if nodes and any(type(node).__name__ == "BackwardHookFunctionBackward" for node in executed):
        return Reason.MODULE_HOOK
    if nodes and len(between) == 1 and all(graph.has_vectors_alone(use) for use in nodes):
        return Reason.VECTOR
    return None
