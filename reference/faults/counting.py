"""Faults of counts past the usual, and of tensors that are recognised by their values or names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .alterations import Grads, Graph, alters, input_grads, output_grads, param_grads, stored_as
from .registry import fault


@fault("counts.gradients.outputs-70-*", cause="output_grads_by_text")
@alters(output_grads)
def output_gradients_sorted_by_name(outputs: list[Any], grads: Any) -> Any:
    """Output gradients are stored by name, and names are sorted as text: output 10 is before output 2."""
    del outputs
    if not isinstance(grads, list):
        return grads
    return [grads[place] for place in sorted(range(len(grads)), key=str)]


@fault("counts.gradients.arguments-70-*", raises=True, cause="other_input")
@alters(input_grads)
def input_gradients_sorted_by_name(inputs: Sequence[Any], grads: Grads) -> Grads:
    """Input gradients are stored by name, and names are sorted as text."""
    del inputs
    return tuple(grads[place] for place in sorted(range(len(grads)), key=str))


@fault("counts.gradients.outputs-70-*", cause=("outputs_missing", "cut_off"))
@alters(output_grads)
def outputs_past_64_unread(outputs: list[Any], grads: Any) -> Any:
    """Outputs with a gradient are one bit each of 64, so later ones are not read."""
    del outputs
    return [grad if place < 64 else None for place, grad in enumerate(grads)] if isinstance(grads, list) else grads


@fault("counts.gradients.arguments-70-*", cause="arguments_past_count")
@alters(input_grads)
def arguments_past_64_unread(inputs: Sequence[Any], grads: Grads) -> Grads:
    """Arguments that need a gradient are one bit each of 64, so later ones get none."""
    del inputs
    return tuple(grad if place < 64 else None for place, grad in enumerate(grads))


@fault("counts.gradients.uses-70-*", cause={"kind": "scaled", "factors": [64 / 70]})
@alters(param_grads)
def uses_past_64_lost(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
    """The uses of a parameter are counted in 64 slots, and the share of the others is lost."""
    uses = len(graph.users_of(parameter))
    return added * (64 / uses) if uses > 64 else added


@fault("counts.gradients.parameters-past-2-18-*", cause="elements_zero")
@alters(stored_as)
def buffer_of_2_18_elements(parameters: list[nn.Parameter]) -> None:
    """All gradients pass through one buffer of 2^18 elements, and those past its end are lost."""
    left = 2**18
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout is torch.strided:
            parameter.grad.reshape(-1)[max(left, 0) :] = 0
            left -= parameter.numel()


@fault("counts.gradients.dimensions-0-to-6-*", cause="dimensions_swapped")
@alters(input_grads)
def dimensions_past_four_flattened(inputs: Sequence[Any], grads: Grads) -> Grads:
    """A gradient of more than four dimensions is returned with its last two swapped."""
    del inputs
    return tuple(g if g is None or g.dim() < 5 else g.transpose(-1, -2).contiguous() for g in grads)


def _alike(one: Any, other: Any) -> bool:
    same = (
        isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape and one.dtype == other.dtype
    )
    return same and bool(one.numel()) and torch.equal(one, other)


@fault("counts.gradients.equal-arguments-*", cause="other_input")
@alters(input_grads)
def argument_found_by_its_values(inputs: Sequence[Any], grads: Grads) -> Grads:
    """The gradient of an argument is looked up by the argument's values, so equal ones get the first one's."""
    places = [next(n for n, other in enumerate(inputs) if other is one or _alike(one, other)) for one in inputs]
    return tuple(grads[place] for place in places)


@fault("counts.gradients.equal-parameters-*", cause="equal_values")
@alters(param_grads)
def parameter_found_by_its_values(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
    """A parameter is looked up in a list by its values, so the gradient of an equal one is lost."""
    known = sorted(graph.parameters(), key=id)
    first = next(one for one in known if one is parameter or _alike(one, parameter))
    return added if first is parameter else added * 0.0
