"""A stage backward of our own, full and split: right by the whole contract, and as fast as torch's.

The functions have the signatures of ``torch.distributed.pipelining._backward``. ``stage_backward_input`` computes the
gradients of the inputs and, on the way, takes what comes in where parameters are used; ``stage_backward_weight`` starts
there, once per use, and asks for the parameters of that use alone. Where that would be wrong, the gradient of that one
parameter is computed in I, and W but accumulates it; ``explain=True`` says for which, and why. Between the two nothing
is kept of the outputs, and what held the output gradients may be received into. The weight context has torch's form, a
list of ``param_groups``, and no group is made of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from gradconform.devices.memory import place_of
from gradconform.torch_releases.edges import EDGE

from .gradients import apart, below_loss, input_grads, match, starts_of
from .recomputed import Root, edge_of, input_pass, silenced, start_at
from .uses import OUTPUTS, Fallback, Reason, Uses, accumulated_into, uses_of

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
    passed = any(isinstance(value, nn.Parameter) for value in needing)
    found, _ = input_grads(roots, grads, input_values) if passed else ((), ())
    passed_on = [value for value in needing if not isinstance(value, nn.Parameter)]
    before = [value.grad for value in passed_on]
    try:
        for value in passed_on:
            value.grad = None
        if roots:
            torch.autograd.backward(roots, grads)  # type: ignore[arg-type] # torch takes both kinds in one list
        return found if passed else apart(input_values, [value.grad for value in needing], grads)
    finally:
        for value, grad in zip(passed_on, before, strict=True):
            value.grad = grad


def stage_backward_input(
    stage_outputs_or_loss: Sequence[Root | None],
    output_grads: Sequence[Tensor | None] | None,
    input_values: Sequence[Any],
    weights: Iterator[nn.Parameter],
    *,
    explain: bool = False,
) -> tuple[tuple[Tensor | None, ...], list[dict[str, Any]]]:
    """Return one gradient per input value, and the context that ``stage_backward_weight`` needs.

    Parameters are left alone. Where ``explain``, ``context[0]["explained"]`` lists a
    :class:`~gradconform.reference.uses.Fallback` for each parameter whose gradient this pass computes and keeps for W,
    whether asked or not. Raises as :func:`stage_backward` does.
    """
    roots, grads = match(list(stage_outputs_or_loss), output_grads)
    trained = {id(weight): weight for weight in weights if weight.requires_grad}
    wanted = [value for value in input_values if isinstance(value, Tensor) and value.requires_grad]
    inputs = [get_gradient_edge(value).node for value in wanted]
    uses = uses_of([edge_of(root) for root in roots], inputs, trained)
    if uses.whole is not None:
        leaves = [*trained.values(), *map(accumulated_into, uses.stand_ins)]
        given, starts, held = input_pass(roots, grads, wanted, leaves)
        early: dict[Node, Tensor | None] = {edge.node: grad for edge, grad in zip(starts, held, strict=True)}
        kept, uses.early = _Kept({}, early), dict.fromkeys(early, uses.whole)
    else:
        given, kept = _computed(roots, grads, wanted, uses)
    found = apart(input_values, given, [*grads, *kept.tensors()])
    kept.copy({place_of(grad) for grad in grads if grad is not None})
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
    if any("grads" not in group for group in param_groups):
        msg = "this weight context was used before; call stage_backward_input again to get another"
        raise RuntimeError(msg)
    trained = {id(parameter) for parameter in parameters if parameter.requires_grad}
    for group in param_groups:
        _accumulate(group, trained, retain_graph=retain_graph)
    return tuple(parameter.grad for parameter in parameters)


def _accumulate(group: dict[str, Any], trained: set[int], *, retain_graph: bool) -> None:
    """Run the backward of one group, and let go of what it holds."""
    starts = starts_of(group)
    kept = group.pop("edges", None)
    stand_ins = group.get("stand_ins", ())
    sought = [node.variable for node in group["params"] if id(node.variable) in trained or node in stand_ins]
    if starts and sought:
        edges, grads = zip(*starts, strict=True)
        retain = retain_graph or group.get("again", False)
        torch.autograd.backward(edges, grads, inputs=sought, retain_graph=retain)
    del kept


#: The gradient that came to each edge of a use.
_Arrived = list[tuple[GradientEdge, Tensor | None]]


@dataclass(slots=True)
class _Kept:
    """What I keeps for W: what came to each use, and the gradients of parameters that it has computed itself."""

    arrived: dict[Node | None, _Arrived]
    early: dict[Node, Tensor | None]

    def tensors(self) -> list[Tensor]:
        """Return all gradients that are kept."""
        came = [grad for arrived in self.arrived.values() for _, grad in arrived]
        return [grad for grad in (*came, *self.early.values()) if grad is not None]

    def copy(self, places: set[int]) -> None:
        """Copy what lies in one of ``places``, which belong to others."""

        def own(grad: Tensor | None) -> Tensor | None:
            return grad.detach().clone() if grad is not None and place_of(grad) in places else grad

        self.arrived = {use: [(edge, own(grad)) for edge, grad in came] for use, came in self.arrived.items()}
        self.early = {node: own(grad) for node, grad in self.early.items()}


def _computed(
    roots: Sequence[Root], grads: Sequence[Tensor | None], wanted: Sequence[Tensor], uses: Uses
) -> tuple[tuple[Tensor | None, ...], _Kept]:
    """Run the backward for the inputs; return their gradients, and what is kept for W."""
    kept = _Kept({}, {})
    outputs: _Arrived = []
    if OUTPUTS in uses.edges:
        outputs = [(uses.roots[at], start_at(roots[at], grads[at])) for at in uses.apart]
    sought: dict[Node | None, list[GradientEdge]] = {
        use: edges for use, edges in uses.edges.items() if use is not OUTPUTS
    }
    if OUTPUTS in uses.edges and len(roots) == 1 and grads[0] is None:
        sought[OUTPUTS] = [below_loss(uses.roots[0])]
    edges = [edge for some in sought.values() for edge in some]
    early = [GradientEdge(node, 0) for node in uses.early]
    given = _grads(roots, grads, [*wanted, *edges, *early], uses.early)
    came = iter(given[len(wanted) :])
    kept.arrived = {OUTPUTS: outputs, **{use: [(edge, next(came)) for edge in some] for use, some in sought.items()}}
    kept.early = dict(zip(uses.early, came, strict=True))
    _ask_where_nothing_came(roots, grads, uses, kept)
    return given[: len(wanted)], kept


def _ask_where_nothing_came(roots: Sequence[Root], grads: Sequence[Tensor | None], uses: Uses, kept: _Kept) -> None:
    """Compute the gradients of parameters to whose uses nothing came: a custom Function may give zeros for nothing."""
    none = {use for use, came in kept.arrived.items() if all(grad is None for _, grad in came)}
    for starts in [starts for starts in uses.kept if starts <= none]:
        asked = dict.fromkeys(uses.kept.pop(starts), Reason.NO_GRADIENT)
        found = _grads(roots, grads, [GradientEdge(node, 0) for node in asked], asked)
        uses.early.update(asked)
        kept.early.update(zip(asked, found, strict=True))


def _grads(
    roots: Sequence[Root], grads: Sequence[Tensor | None], sought: Sequence[Any], silent: Iterable[Node]
) -> tuple[Tensor | None, ...]:
    """Return the gradients at tensors and edges; the hooks of leaves whose nodes are ``silent`` are not called."""
    if not roots or not sought:
        return (None,) * len(sought)
    with silenced(map(accumulated_into, silent)):
        return torch.autograd.grad(
            roots,  # type: ignore[arg-type] # torch takes both kinds in one list
            sought,
            grads,
            retain_graph=True,
            allow_unused=True,
        )


def _groups(uses: Uses, kept: _Kept) -> list[dict[str, Any]]:
    """Return the context of W: what I has computed, then a group for each set of uses, those of many first."""
    early = [(node, grad) for node, grad in kept.early.items() if grad is not None]
    nodes = [node for node, _ in early]
    groups: list[dict[str, Any]] = [{"params": nodes, "intermediates": nodes, "grads": [(grad,) for _, grad in early]}]
    if uses.stand_ins:
        groups[0]["stand_ins"] = uses.stand_ins
    waiting = list(uses.kept)
    for number, starts in enumerate(waiting):
        came = [one for start in starts for one in kept.arrived[start]]
        groups.append(
            {
                "params": uses.kept[starts],
                "intermediates": [edge.node for edge, _ in came],
                "grads": [(None,) * edge.output_nr + (grad,) for edge, grad in came],
                "edges": [keeper for start in starts for keeper in uses.keepers.get(start, ())],
                "again": any(starts & later for later in waiting[number + 1 :]),
            }
        )
    return groups
