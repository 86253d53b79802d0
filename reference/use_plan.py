"""Finds, from the shape of a graph alone, where W starts for each parameter, and whose gradient I computes.

One analysis finds the nodes that lead to an input. A *use* is one of them with a parameter below it, on a path that
leads to no input. The gradient that arrives at its uses is all that the parameter's gradient needs. W can start there,
and compute only that parameter's gradient, unless the engine would reach the parameter a second time further down.

:func:`plan_of` depends only on the shape, so a stored plan is equal to a new one.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .graph_shape import Shape


class Reason(enum.Enum):
    """Why I computes the gradient of a parameter, which W then only accumulates."""

    VECTOR = "the values to keep until W are larger than the gradient"
    TWO_DEPTHS = "it is used again below one of its uses, so W would reach it twice"
    CHECKPOINT = "activation checkpointing would compute its use again in W"
    MODULE_HOOK = "its use has a module hook, which supports only a full backward"
    NO_GRADIENT = "its use receives no gradient, but may return zeros"
    REENTRANT = "re-entrant activation checkpointing refuses a backward with chosen inputs"
    COMPILED = "compiled code runs its backward once, and refuses retain_graph"
    COMPILED_AUTOGRAD = "compiled autograd calls the hooks of a use before it returns the gradient there"
    RESHARDED = "it replaces a sharded weight, and may be freed before W"


#: Represents, among uses, the outputs that lead to no input: W starts there with their own gradients.
OUTPUTS = None
_Starts = frozenset[int | None]


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """One parameter by the number of the node that accumulates into it.

    ``saving`` are the nodes that W would run for it and that may have saved tensors. ``reason`` says why I computes its
    gradient; None if W does.
    """

    accumulating: int
    saving: tuple[int, ...]
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The parameters whose W starts at the same uses.

    ``places`` are those of the edges of its uses among all edges at which gradients arrive. ``outputs`` says that it
    also starts at the outputs that lead to no input. ``keepers`` are the nodes and the roots that keep its uses alive:
    a custom Function's node is kept alive by its users above.

    ``sides`` has for each use the places of its edges that lead to the parameters, if all uses are products. W can then
    also start below these edges, with the gradients of the factors. They are ``direct`` if one of them ends at a
    matrix. A group ``overlaps`` if another one shares a use, and shares it ``again`` if that one is later.
    """

    parameters: tuple[ParameterPlan, ...]
    places: tuple[int, ...]
    outputs: bool
    keepers: tuple[tuple[int, ...], tuple[int, ...]]
    sides: tuple[tuple[int, ...], ...] | None
    direct: bool
    overlaps: bool
    again: bool


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups of one product each that overlap no other and are not direct, which W can do together.

    By use: the ``places`` and ``sides`` of its group, and how many ``parameters`` it has. ``accumulating`` are the
    numbers of all their nodes, one use after the other.
    """

    places: tuple[int, ...] = ()
    sides: tuple[tuple[int, ...], ...] = ()
    parameters: tuple[int, ...] = ()
    accumulating: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class UsePlan:
    """The plan for one shape. All nodes, outputs and roots are numbers.

    ``groups`` are sorted, most uses first; ``others`` are those outside the ``batch``. ``edges`` has node and output of
    each edge at which a gradient arrives at a use. ``products`` has the places of those edges at products that W can
    start below. ``saving`` are the nodes that W would run and that may have saved tensors: the products, then the
    others. ``apart`` are the roots that lead to no input.
    """

    whole: Reason | None
    early: tuple[ParameterPlan, ...] = ()
    groups: tuple[GroupPlan, ...] = ()
    batch: Batch = Batch()
    others: tuple[GroupPlan, ...] = ()
    edges: tuple[tuple[int, int], ...] = ()
    products: tuple[int, ...] = ()
    saving: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    apart: tuple[int, ...] = ()


class _Edges:
    """The edges of a shape, in both directions."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.kinds, self.below = shape.kinds_and_edges()
        self.above: list[list[int]] = [[] for _ in self.kinds]
        for number, children in enumerate(self.below):
            for child, _ in children:
                if child >= 0:
                    self.above[child].append(number)
        #: The nodes that lead to an input; an input's own node is one of them only if it leads to another.
        self.leading = self.all_above(shape.inputs)

    def all_above(self, numbers: Iterable[int]) -> set[int]:
        """Return the nodes from which one of ``numbers`` is reached, going down at least one edge."""
        found: set[int] = set()
        waiting = list(numbers)
        while waiting:
            for user in self.above[waiting.pop()]:
                if user not in found:
                    found.add(user)
                    waiting.append(user)
        return found

    def way_up(self, accumulating: int, ends: set[int]) -> tuple[set[int | None], set[int]]:
        """Return the uses of a parameter, and the nodes between them and it."""
        uses: set[int | None] = set()
        between = {accumulating}
        waiting = [accumulating]
        while waiting:
            number = waiting.pop()
            if number in ends:
                uses.add(OUTPUTS)
            for user in self.above[number]:
                if user in self.leading:
                    uses.add(user)
                elif user not in between:
                    between.add(user)
                    waiting.append(user)
        return uses, between

    def outputs_of(self, use: int) -> tuple[int, ...]:
        """Return the outputs of ``use`` at which gradients arrive."""
        outputs = {output for number, output in self.shape.roots if number == use}
        for user in self.above[use]:
            outputs.update(output for child, output in self.below[user] if child == use)
        return tuple(sorted(outputs))

    def has_vectors_alone(self, use: int) -> bool:
        """Return whether ``use`` has only leaves of at most one dimension, except those that lead to an input."""
        own = [child for child, _ in self.below[use] if child >= 0 and child not in self.leading]
        return all(self.kinds[child].vector for child in own)

    def keeper(self, use: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the node or the roots that keep a use alive; empty if naming the use does."""
        keeper = use
        while self.kinds[keeper].held_from_above:
            if not self.above[keeper]:
                return (), tuple(place for place, (one, _) in enumerate(self.shape.roots) if one == keeper)
            keeper = self.above[keeper][0]
        return () if keeper == use else (keeper,), ()

    def whole(self) -> Reason | None:
        """Return why only one full backward can be run, None if it can be split into I and W."""
        if any(kind.reenters for kind in self.kinds):
            return Reason.REENTRANT
        return Reason.COMPILED if any(kind.compiled for kind in self.kinds) else None

    def reason(self, uses: set[int | None], between: set[int], ends: set[int]) -> Reason | None:
        """Return why a parameter's gradient is computed in I, None if W can compute it."""
        nodes = {use for use in uses if use is not OUTPUTS}
        if len(uses) > 1 and self.all_above(nodes | (ends if OUTPUTS in uses else set())) & nodes:
            return Reason.TWO_DEPTHS
        if nodes and any(self.kinds[number].module_hook for number in nodes | between):
            return Reason.MODULE_HOOK
        if nodes and len(between) == 1 and all(map(self.has_vectors_alone, nodes)):
            return Reason.VECTOR
        return None

    def sides(self, uses: Iterable[int], between: set[int]) -> tuple[tuple[int, ...], ...] | None:
        """Return for each use the places of its edges to the nodes in between; None if a use is not a product."""
        found = []
        for use in uses:
            if not self.kinds[use].product or self.outputs_of(use) != (0,):
                return None
            found.append(tuple(place for place, (child, _) in enumerate(self.below[use]) if child in between))
        return tuple(found)

    def is_direct(self, uses: Iterable[int], between: set[int]) -> bool:
        """Return whether an edge of a use ends at a parameter that is not a vector."""
        below = (child for use in uses for child, _ in self.below[use] if child in between)
        return any(self.kinds[child].trained and not self.kinds[child].vector for child in below)


#: How many plans are stored: those of all stages of a rank, and of the paths that their forwards take.
_KEPT_PLANS = 128


@lru_cache(maxsize=_KEPT_PLANS)
def plan_of(shape: Shape) -> UsePlan:
    """Return where W starts for each parameter of a graph of this shape, and for which of them I computes the gradient.

    Checkpoints that do not re-enter have no mark in the shape: the caller checks the nodes that save tensors.
    """
    edges = _Edges(shape)
    if whole := edges.whole():
        return UsePlan(whole)
    apart = tuple(place for place, (number, _) in enumerate(shape.roots) if number not in edges.leading)
    ends = {shape.roots[place][0] for place in apart}
    outputs: set[int | None] = {OUTPUTS}
    everything = set() if edges.leading else set(range(len(edges.kinds)))
    early: list[ParameterPlan] = []
    kept: dict[_Starts, list[ParameterPlan]] = {}
    below: dict[_Starts, set[int]] = {}
    for number in (number for number, kind in enumerate(edges.kinds) if kind.trained):
        uses, between = edges.way_up(number, ends) if edges.leading else (outputs, everything)
        executed = between | {use for use in uses if use is not OUTPUTS}
        saving = tuple(sorted(one for one in executed if edges.kinds[one].saves))
        reason = edges.reason(uses, between, ends)
        if reason is not None:
            early.append(ParameterPlan(number, saving, reason))
        elif uses:
            kept.setdefault(frozenset(uses), []).append(ParameterPlan(number, saving))
            below.setdefault(frozenset(uses), set()).update(between)
    starts = dict.fromkeys(use for some in kept for use in sorted(use for use in some if use is not OUTPUTS))
    incoming = tuple((use, output) for use in starts for output in edges.outputs_of(use))
    groups = _groups(edges, kept, below, incoming, apart)
    asked = dict.fromkeys(one for group in groups for parameter in group.parameters for one in parameter.saving)
    products = dict.fromkeys(place for group in groups if group.sides is not None for place in group.places)
    batch, others = _batch(groups)
    by_kind = (
        tuple(number for number in asked if edges.kinds[number].product),
        tuple(number for number in asked if not edges.kinds[number].product),
    )
    return UsePlan(None, tuple(early), groups, batch, others, incoming, tuple(products), by_kind, apart)


def _batch(groups: Sequence[GroupPlan]) -> tuple[Batch, tuple[GroupPlan, ...]]:
    """Return the groups that W can do together, and the other groups."""
    batched: list[GroupPlan] = []
    others: list[GroupPlan] = []
    for group in groups:
        alone = group.sides is not None and len(group.places) == 1 and not (group.overlaps or group.direct)
        (batched if alone else others).append(group)
    batch = Batch(
        tuple(group.places[0] for group in batched),
        tuple(group.sides[0] for group in batched if group.sides is not None),
        tuple(len(group.parameters) for group in batched),
        tuple(parameter.accumulating for group in batched for parameter in group.parameters),
    )
    return batch, tuple(others)


def _groups(
    edges: _Edges,
    kept: dict[_Starts, list[ParameterPlan]],
    below: dict[_Starts, set[int]],
    incoming: tuple[tuple[int, int], ...],
    apart: tuple[int, ...],
) -> tuple[GroupPlan, ...]:
    ordered = sorted(kept, key=lambda starts: -len(starts))
    places: dict[int, list[int]] = {}
    for place, (use, _) in enumerate(incoming):
        places.setdefault(use, []).append(place)
    groups_of = Counter(use for starts in ordered for use in starts)
    last = {use: number for number, starts in enumerate(ordered) for use in starts}
    found = []
    for number, starts in enumerate(ordered):
        uses = sorted((use for use in starts if use is not OUTPUTS), key=lambda use: places[use])
        keepers = [edges.keeper(use) for use in uses]
        outputs = OUTPUTS in starts
        found.append(
            GroupPlan(
                tuple(kept[starts]),
                tuple(place for use in uses for place in places[use]),
                outputs,
                (
                    tuple(one for nodes, _ in keepers for one in nodes),
                    (*(one for _, roots in keepers for one in roots), *(apart if outputs else ())),
                ),
                None if outputs else edges.sides(uses, below[starts]),
                edges.is_direct(uses, below[starts]),
                any(groups_of[use] > 1 for use in starts),
                any(last[use] > number for use in starts),
            )
        )
    return tuple(found)
