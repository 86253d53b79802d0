"""The kit's stage backward, full and split: correct by the whole contract, and faster than torch's.

The functions have the signatures of ``torch.distributed.pipelining._backward``. ``stage_backward_input`` computes the
gradients of the inputs and, on the way, collects the gradients that reach the uses of parameters.
``stage_backward_weight`` starts there, only for the parameters of each use. It computes the gradients of a product's
factors itself, and runs the engine for other uses. If that would be wrong, I computes the gradient of that one
parameter and W accumulates it; ``explain=True`` says for which, and why. Between I and W, no reference to the outputs
is kept, and others may receive into the memory of the output gradients.

The weight context has torch's form, a list of ``param_groups``. First come the gradients computed by I, then all
products that W does together, then a group for each set of other uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from gradconform.devices.tensor_facts import shared_place_of
from gradconform.torch_releases.edges import EDGE
from gradconform.torch_releases.node_hooks import Watched
from gradconform.torch_releases.products import engine_is_needed

from .gradients import apart, below_loss, input_grads, match, places_of
from .parameter_uses import Fallback, LookUp, Reason, Uses, accumulated_into, uses_of
from .recomputed import Root, edge_of, input_pass, silenced, start_at
from .use_plan import GroupPlan, plan_of
from .weight_pass import accumulate_groups

#: The claims of these functions beyond those of plain autograd.
gradconform_capabilities = {"none_output_grad": True, "edge_roots": EDGE.there()}


def stage_backward(
    stage_output: Any, output_grads: Any, input_values: Sequence[Any], outputs_with_grads_idxs: list[int] | None = None
) -> tuple[Tensor | None, ...]:
    """Return one gradient per input value from the full backward, and accumulate the parameters' into ``.grad``.

    ``output_grads`` mirrors ``stage_output``; it is None for a loss. None for an output means that no gradient flows
    through it. A ``GradientEdge`` replaces an output that was freed, as in torch 2.15's runtime. Raises ``ValueError``
    if structure or shape differ, before anything is changed.
    """
    del outputs_with_grads_idxs
    roots, grads = match(stage_output, output_grads)
    needing = [value for value in input_values if isinstance(value, Tensor) and value.requires_grad]
    # A parameter passed as an input accumulates as a parameter, so its own gradient needs a separate walk.
    passed = any(isinstance(value, nn.Parameter) for value in needing)
    found, _ = input_grads(roots, grads, input_values) if passed else ((), ())
    passed_on = [value for value in needing if not isinstance(value, nn.Parameter)]
    before = [value.grad for value in passed_on]
    try:
        for value in passed_on:
            value.grad = None
        if roots:
            torch.autograd.backward(roots, grads)  # type: ignore[arg-type] # torch takes both kinds in one list
        return found if passed else apart(input_values, [value.grad for value in needing], places_of(grads))
    finally:
        for value, grad in zip(passed_on, before, strict=True):
            value.grad = grad


def stage_backward_input(  # noqa: PLR0913 (torch has four of them)
    stage_outputs_or_loss: Sequence[Root | None],
    output_grads: Sequence[Tensor | None] | None,
    input_values: Sequence[Any],
    weights: Iterator[nn.Parameter],
    *,
    explain: bool = False,
    look_up: LookUp = plan_of,
) -> tuple[tuple[Tensor | None, ...], list[dict[str, Any]]]:
    """Return one gradient per input value, and the context that ``stage_backward_weight`` needs.

    Parameters are not changed. With ``explain``, ``context[0]["explained"]`` lists a
    :class:`~gradconform.reference.parameter_uses.Fallback` for each parameter whose gradient this pass computes and
    keeps for W, even if it is not requested. ``look_up`` returns the plan for the shape of a graph. Raises as
    :func:`stage_backward` does.
    """
    roots, grads = match(list(stage_outputs_or_loss), output_grads)
    trained = {id(weight): weight for weight in weights if weight.requires_grad}
    wanted = [value for value in input_values if isinstance(value, Tensor) and value.requires_grad]
    uses = uses_of([edge_of(root) for root in roots], wanted, trained, explain=explain, look_up=look_up)
    if uses.plan.whole is not None:
        leaves = [*trained.values(), *map(accumulated_into, uses.stand_ins)]
        given, starts, held = input_pass(roots, grads, wanted, leaves)
        kept = _Kept(early={edge.node: grad for edge, grad in zip(starts, held, strict=True)})
        uses.early = dict.fromkeys(kept.early, uses.plan.whole)
    else:
        given, kept = _computed(roots, grads, wanted, uses)
    of_caller = places_of(grads)
    found = apart(input_values, given, of_caller | kept.set_apart(of_caller))
    context = _groups(uses, kept)
    if explain:
        context[0]["explained"] = [Fallback(accumulated_into(node), reason) for node, reason in uses.early.items()]
    return found, context


def stage_backward_weight(
    weights: Iterator[nn.Parameter],
    param_groups: list[dict[str, Any]],
    retain_graph: bool = False,  # noqa: FBT001, FBT002 (torch's own signature)
) -> tuple[Tensor | None, ...]:
    """Accumulate the parameters' gradients into ``.grad`` and return them, one per weight.

    The context is used up: a second call with it raises ``RuntimeError``.
    """
    parameters = list(weights)
    for group in param_groups:
        if "grads" not in group:
            msg = "this weight context was used before; call stage_backward_input again to get another"
            raise RuntimeError(msg)
    trained = {id(parameter) for parameter in parameters if parameter.requires_grad}
    accumulate_groups(param_groups, trained, retain_graph=retain_graph)
    return tuple([parameter.grad for parameter in parameters])


@dataclass(slots=True)
class _Kept:
    """The data that I keeps for W: the gradients at the uses, and those of parameters that it has computed itself."""

    #: The gradients at the edges of uses, by their places in the plan.
    came: dict[int, Tensor | None] = field(default_factory=dict)
    #: The places of products, whose gradients are those that they ran on, after all hooks.
    ran: frozenset[int] = frozenset()
    #: The places of the products without a hook behind them.
    untouched: set[int] = field(default_factory=set)
    #: W's start gradients at the outputs that lead to no input.
    outputs: list[tuple[GradientEdge, Tensor | None]] = field(default_factory=list)
    early: dict[Node, Tensor | None] = field(default_factory=dict)

    def set_apart(self, others: set[int]) -> set[int]:
        """Copy the tensors at the memory addresses in ``others``; return the addresses of the rest."""
        places: set[int] = set()

        def own(grad: Tensor | None) -> Tensor | None:
            if grad is None:
                return None
            place = shared_place_of(grad)
            if place in others:
                return grad.detach().clone()
            places.add(place)
            return grad

        self.came = {place: own(grad) for place, grad in self.came.items()}
        self.outputs = [(edge, own(grad)) for edge, grad in self.outputs]
        self.early = {node: own(grad) for node, grad in self.early.items()}
        return places

    def nothing_came(self, group: GroupPlan) -> bool:
        """Return whether no gradient reached any use of a group."""
        outputs = [grad for _, grad in self.outputs] if group.outputs else []
        return all(grad is None for grad in (*outputs, *(self.came[place] for place in group.places)))


def _computed(
    roots: Sequence[Root], grads: Sequence[Tensor | None], wanted: Sequence[Tensor], uses: Uses
) -> tuple[tuple[Tensor | None, ...], _Kept]:
    """Return the gradients of the inputs from their backward, and the data kept for W."""
    kept = _Kept()
    if [group for group in uses.groups if group.outputs]:
        kept.outputs = [(uses.roots[at], start_at(roots[at], grads[at])) for at in uses.plan.apart]
    loss = [below_loss(uses.roots[0])] if kept.outputs and len(roots) == 1 and grads[0] is None else []
    nodes, incoming = uses.nodes, uses.plan.edges
    products = () if engine_is_needed() else uses.products()
    kept.ran = frozenset(products)
    places = [place for place in uses.places() if place not in kept.ran]
    edges = [GradientEdge(nodes[number], output) for number, output in map(incoming.__getitem__, places)]
    early = [GradientEdge(node, 0) for node in uses.early]
    with Watched([nodes[incoming[place][0]] for place in products]) as watched:
        given = _grads(roots, grads, [*wanted, *edges, *loss, *early], uses.early)
    came = iter(given[len(wanted) :])
    kept.came = dict(zip(places, came))  # noqa: B905 (the gradients of the loss and of parameters follow)
    kept.came.update(zip(products, watched.ran_on, strict=True))
    kept.untouched = set(compress(products, watched.alone))
    if loss:
        kept.outputs = [(loss[0], next(came))]
    kept.early = dict(zip(uses.early, came, strict=True))
    _ask_where_nothing_came(roots, grads, uses, kept)
    return given[: len(wanted)], kept


def _ask_where_nothing_came(roots: Sequence[Root], grads: Sequence[Tensor | None], uses: Uses, kept: _Kept) -> None:
    """Compute the gradients of parameters whose uses no gradient reached: a custom Function may return zeros."""
    came = (*kept.came.values(), *(grad for _, grad in kept.outputs))
    if all(grad is not None for grad in came):
        return
    nothing = [group for group in uses.groups if kept.nothing_came(group)]
    for group in nothing:
        asked = dict.fromkeys(uses.accumulating(group), Reason.NO_GRADIENT)
        found = _grads(roots, grads, [GradientEdge(node, 0) for node in asked], asked)
        uses.early.update(asked)
        kept.early.update(zip(asked, found, strict=True))
    if nothing:
        uses.groups = [group for group in uses.groups if group not in nothing]


def _grads(
    roots: Sequence[Root], grads: Sequence[Tensor | None], sought: Sequence[Any], silent: Collection[Node]
) -> tuple[Tensor | None, ...]:
    """Return the gradients at tensors and edges; the hooks of leaves whose nodes are ``silent`` are not called."""
    if not roots or not sought:
        return (None,) * len(sought)
    with silenced(map(accumulated_into, silent)) if silent else nullcontext():
        return torch.autograd.grad(
            roots,  # type: ignore[arg-type] # torch takes both kinds in one list
            sought,
            grads,
            retain_graph=True,
            allow_unused=True,
        )


def _groups(uses: Uses, kept: _Kept) -> list[dict[str, Any]]:
    """Return the context of W: the gradients computed by I, then a group for each set of uses, larger sets first."""
    early = [(node, grad) for node, grad in kept.early.items() if grad is not None]
    nodes = [node for node, _ in early]
    groups: list[dict[str, Any]] = [{"params": nodes, "intermediates": nodes, "grads": [(grad,) for _, grad in early]}]
    if uses.stand_ins:
        groups[0]["stand_ins"] = uses.stand_ins
    batch = uses.plan.batch
    if uses.is_as_planned() and kept.untouched.issuperset(batch.places):
        if batch.places:
            groups.append(_batched(uses, kept))
            # No product of the batch leads to such a vector, so the engine reaches it once.
            groups[0]["joins"] = all(reason is Reason.VECTOR for reason in uses.early.values())
        return groups + [_group(uses, kept, group) for group in uses.plan.others]
    return groups + [_group(uses, kept, group) for group in uses.groups]


def _batched(uses: Uses, kept: _Kept) -> dict[str, Any]:
    """Return the uses that W does together as one group: each use has its own parameters and sides."""
    batch, nodes, edges, came = uses.plan.batch, uses.nodes, uses.plan.edges, kept.came
    return {
        "params": [nodes[number] for number in batch.accumulating],
        "intermediates": [nodes[edges[place][0]] for place in batch.places],
        "grads": [(came[place],) for place in batch.places],
        "sides": batch.sides,
        "parameters": batch.parameters,
    }


def _group(uses: Uses, kept: _Kept, group: GroupPlan) -> dict[str, Any]:
    """Return the parameters whose W starts at the same uses as a group of the context."""
    edges = [uses.plan.edges[place] for place in group.places]
    by_nodes, by_roots = group.keepers
    found: dict[str, Any] = {
        "params": uses.accumulating(group),
        "intermediates": [uses.nodes[number] for number, _ in edges],
        "grads": [(None,) * edge[1] + (kept.came[place],) for place, edge in zip(group.places, edges, strict=True)],
        "edges": [*(uses.nodes[number] for number in by_nodes), *(uses.roots[place] for place in by_roots)],
        "again": group.again,
    }
    if not kept.ran.isdisjoint(group.places):
        found["ran"] = [uses.nodes[uses.plan.edges[place][0]] for place in group.places if place in kept.ran]
    if group.outputs:
        found["intermediates"] += [edge.node for edge, _ in kept.outputs]
        found["grads"] += [(None,) * edge.output_nr + (grad,) for edge, grad in kept.outputs]
    if group.sides is not None and kept.untouched.issuperset(group.places):
        found.update(sides=group.sides, overlaps=group.overlaps)
    return found
