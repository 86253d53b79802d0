"""Faults that one value of a dimension shows: of memory, dtype, values, hooks, mode or time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.devices.tensor_facts import place_of
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target
from gradconform.trees import map_leaves

from .alterations import (
    Backwards,
    Grads,
    Graph,
    alters,
    backwards,
    input_grads,
    output_grads,
    param_grads,
    stored_as,
    target,
    with_session,
)
from .registry import fault


@fault("space.*.inputs-in-one-memory-*", cause="other_input", takes="inputs=inputs-in-one-memory", shows_by="memory")
@alters(input_grads)
def inputs_told_apart_by_address(inputs: Sequence[Any], grads: Grads) -> Grads:
    """Input gradients are stored by the input's address, so two inputs on one memory get the last one's."""
    last = {place_of(value): grad for value, grad in zip(inputs, grads, strict=True) if isinstance(value, Tensor)}
    return tuple(
        grad if grad is None or not value.numel() or last[place_of(value)] is None else last[place_of(value)]
        for value, grad in zip(inputs, grads, strict=True)
    )


@fault(
    "space.*.parameters-in-one-memory-*",
    cause="other_parameter",
    takes="parameters=parameters-in-one-memory",
    shows_by="memory",
)
@alters(stored_as)
def parameters_told_apart_by_address(parameters: list[nn.Parameter]) -> None:
    """Gradients are stored by the parameter's address, so two parameters on one memory get the last one's."""
    last = {place_of(parameter): parameter.grad for parameter in parameters if parameter.grad is not None}
    for parameter in parameters:
        held = last.get(place_of(parameter))
        if parameter.numel() and parameter.grad is not None and held is not None and held is not parameter.grad:
            parameter.grad = held.clone()


def _flushed(share: float) -> Callable[..., Tensor]:
    """Return an edit that sets elements below a power of the dtype's smallest normal number to zero."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: object) -> Tensor:
        del parameter, graph
        if added.layout != torch.strided or added.is_complex():
            return added
        return torch.where(added.abs() < torch.finfo(added.dtype).smallest_normal ** share, 0.0, added)

    return edit


@fault(
    "space.*.subnormal-*",
    cause="flushed",
    takes="values=subnormal",
    shows_by="denormals",
)
def subnormal_gradients_flushed() -> Target:
    """Numbers below the smallest normal number are flushed to zero."""
    return target(param_grads(_flushed(1.0)))


@fault("space.*.tiny-*", cause="flushed", takes="values=tiny subnormal")
def tiny_gradients_flushed() -> Target:
    """Tiny numbers are flushed to zero, like in a gradient that passes through a narrower dtype."""
    return target(param_grads(_flushed(0.5)))


@fault("space.*.huge-*", cause="clipped", takes="values=huge")
def huge_gradients_clipped() -> Target:
    """Gradients are clipped at a number that was thought unreachable."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        del parameter
        if added.layout != torch.strided or added.is_complex():
            return added
        most = torch.finfo(added.dtype).max ** 0.4
        if added.dtype.itemsize < max(one.dtype.itemsize for one in graph.parameters()):
            return added  # its range is another than that of the rest
        return added.clamp(-most, most)

    return target(param_grads(edit))


@fault("space.*.zeros-*", cause=("zero", "never_accumulated"), takes="values=zeros")
@alters(backwards)
def zeros_taken_for_padding(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """A micro-batch with an argument of zeros is treated as padding and returns no gradient."""
    floating = [one for one in inputs if isinstance(one, Tensor) and one.is_floating_point() and one.numel() > 1]
    if all(map(torch.Tensor.any, floating)):
        return run(outputs, grads, inputs)
    return tuple(torch.zeros_like(one) if one.requires_grad else None for one in inputs)


@fault("space.*.one-element-*", cause="output_grads_ones", takes="outputs=one-element")
@alters(output_grads)
def one_element_taken_for_a_loss(outputs: list[Any], grads: Any) -> Any:
    """An output of one element is treated as a loss, with gradient 1."""
    lone = len(outputs) == 1 and outputs[0].shape == (1,)
    return [torch.ones_like(outputs[0])] if lone and outputs[0].requires_grad else grads


@fault("space.*.cancelling-*", cause="argument_cancels", takes="values=cancelling")
@alters(backwards)
def arguments_that_add_up_to_zero_taken_for_padding(
    run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]
) -> Grads:
    """A micro-batch whose arguments add up to zero is treated as padding, with gradients of zeros."""
    floats = [value for value in inputs if isinstance(value, Tensor) and value.is_floating_point() and value.numel()]
    floats = [value for value in floats if value.dtype == floats[0].dtype]  # a coarser one adds up to zero by chance
    small = [2**6 * torch.finfo(value.dtype).eps * float(value.abs().sum()) for value in floats]
    if any(most and abs(float(value.sum())) <= most for value, most in zip(floats, small, strict=True)):
        grads = map_leaves(lambda grad: torch.zeros_like(grad) if isinstance(grad, Tensor) else grad, grads)
    return run(outputs, grads, inputs)


@fault("space.*.named-*", raises=True, takes="outputs=named")
@alters(backwards)
def named_tuple_taken_by_name(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Any) -> Grads:
    """The gradients of a named tuple are sorted by field name, but the outputs are not."""
    if hasattr(outputs, "_fields") and isinstance(grads, tuple):
        order = sorted(range(len(grads)), key=lambda slot: outputs._fields[slot], reverse=True)
        return run(tuple(outputs), tuple(grads[slot] for slot in order), inputs)
    return run(outputs, grads, inputs)


@fault("space.*.tuple-of-one-*", "space.full.default-dtype-1", cause="first_row", takes="outputs=tuple-of-one")
@alters(with_session)
class TupleOfOneTakenApartTwice(Backwards):
    """A tuple of one tensor and its gradient are unpacked twice, so that the first row is used for all."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        _, outputs = self._forwards[mb]
        if isinstance(outputs, tuple) and len(outputs) == 1 and isinstance(output_grads, tuple):
            output_grads = tuple(grad if grad is None else grad[:1].expand_as(grad) for grad in output_grads)
        return backward(mb, output_grads)


@fault("space.*.unused-input-*", cause="unused_argument", takes="inputs=unused-input")
@alters(input_grads)
def all_inputs_lost_with_one_that_is_not_used(inputs: Sequence[Any], grads: Grads) -> Grads:
    """If an argument that requires a gradient gets none, the other arguments get none either."""
    lacking = any(
        isinstance(value, Tensor) and value.requires_grad and grad is None
        for value, grad in zip(inputs, grads, strict=True)
    )
    return (None,) * len(grads) if lacking else grads


@fault("space.*.integer-input-*", cause="whole_numbers", takes="inputs=integer-input")
@alters(input_grads)
def input_gradients_in_the_dtype_of_the_last_argument(inputs: Sequence[Any], grads: Grads) -> Grads:
    """Input gradients pass through a buffer in the last argument's dtype, which may be an integer dtype."""
    last = inputs[-1] if inputs else None
    if not isinstance(last, Tensor) or last.is_floating_point() or last.is_complex():
        return grads
    return tuple(grad if grad is None else grad.to(last.dtype).to(grad.dtype) for grad in grads)


@fault("space.*.bools-*", cause="output_of_bools", takes="outputs=bools")
@alters(output_grads)
def output_of_bools_taken_for_a_mask(outputs: list[Any], grads: Any) -> Any:
    """An output of bools is treated as a mask on the gradients of the other outputs."""
    masked = any(isinstance(output, Tensor) and output.dtype is torch.bool for output in outputs)
    return map_leaves(lambda one: torch.zeros_like(one) if isinstance(one, Tensor) else one, grads) if masked else grads


@fault("space.split.frozen-[0-9]*", takes="parameters=frozen")
@alters(stored_as)
def unused_parameters_given_zeros(parameters: list[nn.Parameter]) -> None:
    """A parameter that no output uses gets zeros as its gradient, which an optimizer with decay uses."""
    for parameter in parameters:
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


@fault(
    "space.*.three-steps-*", cause="number_used_before", takes="steps=cleared zeroed stepped three-steps frozen-later"
)
@alters(with_session)
class NumbersOfMicrobatchesUsedOnce(FunctionsSession):
    """A micro-batch number that was used before counts as done: its parameters get no gradient."""

    def _seen(self, mb: int, run: Callable[[], Any]) -> Any:
        done: set[tuple[int, str]] = vars(self).setdefault("done", set())
        key = (mb, run.__qualname__)
        kept = [None if p.grad is None else p.grad.clone() for p in self._stage.parameters()] if key in done else None
        done.add(key)
        found = run()
        if kept is not None:
            for parameter, grad in zip(self._stage.parameters(), kept, strict=True):
                parameter.grad = grad
        return found

    def backward(self, mb: int, output_grads: Any) -> Grads:
        def full() -> Grads:
            return FunctionsSession.backward(self, mb, output_grads)

        found: Grads = self._seen(mb, full)
        return found

    def backward_weight(self, mb: int) -> Grads | None:
        def weight() -> Grads | None:
            return FunctionsSession.backward_weight(self, mb)

        found: Grads | None = self._seen(mb, weight)
        return found
