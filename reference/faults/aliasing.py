"""Faults of aliasing: gradients that share storage, or that are overwritten after their return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.target.resolve import Target
from gradconform.trees import tensors

from .alterations import (
    RIGHT,
    Context,
    Functions,
    Grads,
    Graph,
    alters,
    backwards,
    each_input_grad,
    input_grads,
    param_grads,
    per_session,
    stored_as,
    target,
    weight_passes,
)
from .registry import fault


@fault("state.returned.*")
@alters(per_session)
def returned_buffer_reused(_: StageSpec) -> Functions:
    """Input gradients are returned in one buffer per slot, which the next micro-batch overwrites."""
    buffers: dict[tuple[Any, ...], Tensor] = {}

    def stored(slot: int, grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        return buffers.setdefault((slot, grad.shape, grad.dtype), torch.empty_like(grad)).copy_(grad)

    return input_grads(lambda _, grads: tuple(stored(slot, grad) for slot, grad in enumerate(grads)))


@fault("state.returned_owned.added-parameter-*", cause={"kind": "written_over", "action": "overwrite0"})
def returned_gradient_stored() -> Target:
    """If a parameter's gradient is also an input's, .grad is the returned tensor, which belongs to the caller."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        parameters = Graph.behind(outputs).parameters()
        found = RIGHT.full(outputs, grads, inputs)
        for parameter in parameters:
            parameter.grad = next((grad for grad in found if _equal(grad, parameter.grad)), parameter.grad)
        return found

    def make(_: StageSpec) -> Functions:
        returned: list[tuple[Tensor, Tensor]] = []

        def remember(_: Sequence[Any], grads: Grads) -> Grads:
            returned.extend((grad, grad.clone()) for grad in grads if grad is not None)
            return grads

        def edit(_: nn.Parameter, added: Tensor, __: Graph) -> Tensor:
            return next((grad for grad, was in returned if _equal(was, added)), added)

        return replace(param_grads(edit, input_grads(remember)), full=full)

    return per_session(make)


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None or one.layout != other.layout or one.layout != torch.strided:
        return False
    return one.shape == other.shape and torch.equal(one, other)


@fault("state.returned.mlp-*", "state.returned.sum-of-inputs-*")
@alters(per_session)
def returned_gradient_summed_into(_: StageSpec) -> Functions:
    """The gradient returned for the first micro-batch is also a buffer that sums the later ones for logging."""
    first: dict[int, Tensor] = {}

    def edit(_: Sequence[Any], grads: Grads) -> Grads:
        for slot, grad in enumerate(grads):
            if grad is not None and first.setdefault(slot, grad) is not grad and first[slot].shape == grad.shape:
                first[slot].add_(grad)
        return grads

    return input_grads(edit)


def _adopt(parameters: Iterable[nn.Parameter], given: Sequence[Tensor]) -> None:
    """Set ``.grad`` to the output gradient itself if the two are equal."""
    for parameter in parameters:
        for grad in given:
            if parameter.grad is not None and parameter.grad.shape == grad.shape and torch.equal(parameter.grad, grad):
                parameter.grad = grad


def _by_reference(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Any) -> tuple[Grads, Context]:
    """Let the weight context hold the output gradients themselves instead of copies."""
    found, groups = RIGHT.input_pass(outputs, grads, inputs, weights)
    given = tensors(grads)
    for group in groups:
        group["grads"] = [
            tuple(next((grad for grad in given if _equal(grad, kept)), kept) for kept in node_grads)
            for node_grads in group["grads"]
        ]
    return found, groups


@fault("state.receive_buffer.*", cause={"kind": "received_over", "action": "receive0"}, takes="caller=receives")
def output_gradient_kept() -> Target:
    """The weight context stores the caller's output gradients, so W reads values that were written to them later."""
    return target(replace(RIGHT, input_pass=_by_reference))


@fault("state.stored_storage.bare-bias-*", "state.output_grads.bare-bias-*")
def output_gradient_stored() -> Target:
    """A parameter gradient that equals the output gradient is that same tensor, and is added to in place."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        parameters = Graph.behind(outputs).parameters()
        found = RIGHT.full(outputs, grads, inputs)
        _adopt(parameters, tensors(grads))
        return found

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        given = [grad for group in groups for node_grads in group.get("grads", ()) for grad in tensors(node_grads)]
        run(parameters, groups)
        _adopt(parameters, given)

    return target(replace(weight_passes(around), full=full, input_pass=_by_reference))


@fault("state.stored_storage.mlp-*", "state.stored_storage.residual-*", "*.gradients.mlp", cause="one_buffer")
@alters(stored_as)
def two_parameters_share_a_buffer(parameters: list[nn.Parameter]) -> None:
    """All parameter gradients are written to the start of one buffer."""
    held = [one for one in parameters if one.grad is not None and one.grad.layout == torch.strided]
    size = max((parameter.numel() for parameter in held), default=0)
    buffer = torch.empty(size, dtype=held[0].dtype) if held else torch.empty(0)
    for parameter in held:
        if parameter.dtype == buffer.dtype and parameter.grad is not None:
            parameter.grad = buffer[: parameter.numel()].view(parameter.shape).copy_(parameter.grad)


@fault("state.params.mlp-*", "state.stored_storage.mlp-*")
@alters(stored_as)
def gradient_written_into_the_parameter(parameters: list[nn.Parameter]) -> None:
    """A parameter's gradient shares the parameter's storage."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout == torch.strided and parameter.dim() == 1:
            parameter.grad = parameter.data.copy_(parameter.grad)


@fault("state.returned_storage.sum-of-inputs-*")
@alters(backwards)
def output_gradient_returned(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """If an input's gradient equals the output gradient, the output gradient itself is returned."""
    found = run(outputs, grads, inputs)
    return tuple(next((given for given in tensors(grads) if _equal(given, grad)), grad) for grad in found)


@fault("state.returned_storage.*", shows_by="memory")
def gradient_returned_in_the_input() -> Target:
    """An input's gradient is returned as a view of the input and overwrites its values."""
    return target(
        each_input_grad(lambda value, grad: grad if isinstance(value, nn.Parameter) else value.data.copy_(grad))
    )


@fault("state.returned_same_args.*")
@alters(input_grads)
def grad_attribute_of_the_input_returned(inputs: Sequence[Any], grads: Grads) -> Grads:
    """The .grad of the input is returned, to which the next micro-batch of the same input adds."""
    found: list[Tensor | None] = []
    for value, grad in zip(inputs, grads, strict=True):
        if grad is not None and value.is_leaf and not isinstance(value, nn.Parameter):
            value.grad = grad if value.grad is None else value.grad.add_(grad)
        found.append(grad if grad is None or isinstance(value, nn.Parameter) else value.grad)
    return tuple(found)


@fault("state.returned_layout.*", shows_by="memory")
@alters(each_input_grad)
def returned_as_a_transpose(_: Any, grad: Tensor) -> Tensor:
    """Input gradients are returned as views of a transposed copy."""
    return grad if grad.dim() < 2 or grad.layout != torch.strided else grad.mT.contiguous().mT
