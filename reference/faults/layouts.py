"""Faults of memory layout and of small elements: right for usual arguments only."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.devices.tensor_facts import storage_of
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target

from .alterations import (
    Grads,
    Graph,
    alters,
    each_input_grad,
    each_output_grad,
    input_grads,
    param_grads,
    target,
    with_session,
)
from .registry import fault


def _read_from_the_start(tensor: Tensor) -> Tensor | None:
    """Return the values in the tensor's memory, read as a contiguous tensor; None if the memory is too small."""
    storage = storage_of(tensor)
    if storage is None or storage.nbytes() < tensor.nbytes:
        return None
    stored = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
    return stored[: tensor.numel()].view(tensor.shape)


def _misreading(read: Callable[[Tensor], Tensor | None]) -> Target:
    """Return a target whose B and W use ``read(argument)`` as the argument's values; None means no change."""

    @contextlib.contextmanager
    def misread(args: Sequence[Any]) -> Iterator[None]:
        floats = [one for one in args if isinstance(one, Tensor) and one.is_floating_point()]
        pairs = [(one, one.detach().clone(), read(one.detach())) for one in floats]
        copies = [(one, right, wrong.clone()) for one, right, wrong in pairs if wrong is not None]
        for one, _, wrong in copies:
            one.data.copy_(wrong)
        try:
            yield
        finally:
            for one, right, _ in copies:
                one.data.copy_(right)

    class Misreading(FunctionsSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._read: dict[int, Sequence[Any]] = {}

        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            self._read[mb] = args
            return super().forward(mb, args, target)

        def backward(self, mb: int, output_grads: Any) -> Grads:
            with misread(self._read[mb]):
                return super().backward(mb, output_grads)

        def backward_weight(self, mb: int) -> Grads | None:
            with misread(self._read[mb]):
                return super().backward_weight(mb)

    return with_session(Misreading)


def _has_gaps(tensor: Tensor) -> bool:
    return tensor.dim() > 0 and tensor.numel() > 1 and min(tensor.stride()) > 1


@fault(
    "space.*.strided-arguments-*",
    cause="arguments_read_as_contiguous",
    takes="layout=strided-arguments",
    shows_by="memory",
)
def arguments_with_gaps_read_without() -> Target:
    """The weight gradient reads an argument with gaps in memory as if it were contiguous."""
    return _misreading(lambda one: _read_from_the_start(one) if _has_gaps(one) else None)


@fault(
    "space.*.offset-arguments-*",
    cause="arguments_read_as_contiguous",
    takes="layout=offset-arguments",
    shows_by="memory",
)
def arguments_read_from_the_start_of_their_memory() -> Target:
    """The weight gradient reads an argument from the start of its memory instead of its offset."""

    def read(argument: Tensor) -> Tensor | None:
        from_its_offset = argument.is_contiguous() and argument.storage_offset() > 0
        return _read_from_the_start(argument) if from_its_offset else None

    return _misreading(read)


def _channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)


@fault("*.gradients.conv2d-channels-last", cause="arguments_read_as_contiguous", shows_by="memory")
def channels_last_arguments_read_as_contiguous() -> Target:
    """The weight gradient reads a channels-last argument as if it were contiguous."""
    return _misreading(lambda one: _read_from_the_start(one) if _channels_last(one) else None)


@fault("grad_tuple.layout.channels-last-*", cause="read_as_contiguous", shows_by="memory")
@alters(each_output_grad)
def channels_last_gradient_read_as_contiguous(_: Any, grad: Any) -> Any:
    """A channels-last output gradient is read as if it were contiguous."""
    return _read_from_the_start(grad) if isinstance(grad, Tensor) and _channels_last(grad) else grad


#: The share of the largest element below which one that is not zero is small, and the share of all that these must be.
_SMALL, _SHARE = 2.0**-8, 0.3


@fault(
    "space.*.uneven-*",
    "space.full.at-once-1",
    dtypes=("float32", "float64"),
    elsewhere="2^-12 of the largest element is below its rounding",
    takes="values=uneven",
)
def small_elements_dropped() -> Target:
    """The weight gradient treats the small elements of an argument as zeros, like a compressed copy."""

    def read(argument: Tensor) -> Tensor | None:
        if argument.numel() < 4:
            return None
        small = (argument.abs() < _SMALL * argument.abs().max()) & (argument != 0)
        return torch.where(small, 0.0, argument) if float(small.float().mean()) > _SHARE else None

    return _misreading(read)


@fault("space.*.transposed-arguments-*", cause="written_across", takes="layout=transposed-arguments", shows_by="memory")
@alters(input_grads)
def input_gradient_written_as_the_argument_is(inputs: Sequence[Any], grads: Grads) -> Grads:
    """The first input gradient is written row by row into memory with the strides of a transposed argument."""
    first, grad = inputs[0], grads[0]
    if grad is None or first.dim() < 2 or first.is_contiguous() or not first.t().is_contiguous():
        return grads
    return (torch.as_strided(grad.contiguous(), first.shape, first.stride()), *grads[1:])


@fault("space.*.expanded-arguments-*", cause="summed_as_argument", takes="layout=expanded-arguments", shows_by="memory")
@alters(each_input_grad)
def gradient_of_an_expanded_argument_summed(value: Any, grad: Tensor) -> Tensor:
    """The gradient of an expanded argument is accumulated in one memory cell, like the argument's elements."""
    if not isinstance(value, Tensor) or any(value.stride()) or not value.dim():
        return grad
    return grad.sum().expand(grad.shape)


@fault("space.*.transposed-weight-*", cause="written_across", takes="layout=transposed-weight", shows_by="memory")
def weight_gradient_written_as_the_weight_is() -> Target:
    """The gradient of a transposed weight is written row by row into memory with the weight's strides."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        del graph
        if parameter.dim() < 2 or parameter.is_contiguous() or added.layout != torch.strided:
            return added
        return torch.as_strided(added.contiguous(), parameter.shape, parameter.stride())

    return target(param_grads(edit))


@fault("space.*.offset-gradients-*", cause="read_as_contiguous", takes="start=offset-gradients", shows_by="memory")
@alters(each_output_grad)
def output_gradient_read_from_the_start_of_its_memory(_: Any, grad: Any) -> Any:
    """An output gradient is read from the start of its memory instead of its offset."""
    if not isinstance(grad, Tensor) or not grad.is_contiguous() or not grad.storage_offset():
        return grad
    read = _read_from_the_start(grad)
    return grad if read is None else read


class _AsItsGradient(torch.autograd.Function):
    """A function whose result in the backward has the strides of the gradient, also where these are 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(ctx.run(x), x, grad)
        for dimension, (size, stride) in enumerate(zip(grad.shape, grad.stride(), strict=True)):
            if stride == 0 and size > 1:
                found = found.narrow(dimension, size - 1, 1).expand(grad.shape)
        return found, None


def _strided_as_gradients(*kinds: type[nn.Module]) -> Target:
    """Return a target that replaces layers of these kinds by functions as :class:`_AsItsGradient`."""

    class Replacing(FunctionsSession):
        def __init__(self, functions: Any, stage: nn.Module, spec: Any) -> None:
            super().__init__(functions, stage, spec)
            self._replaced = [layer for layer in stage.modules() if type(layer) in kinds]
            for layer in self._replaced:
                vars(layer)["forward"] = functools.partial(_apply, type(layer).forward, layer)

        def close(self) -> None:
            for layer in self._replaced:
                vars(layer).pop("forward", None)
            super().close()

    return with_session(Replacing)


def _apply(run: Callable[..., Tensor], layer: nn.Module, x: Tensor) -> Any:
    return _AsItsGradient.apply(x, functools.partial(run, layer))  # type: ignore[no-untyped-call] # torch's


@fault("grad_tuple.expanded.activation-*", cause="strided_as_gradient")
def hyperbolic_tangent_strided_as_its_gradient() -> Target:
    """The gradient of a tanh has the strides of the output gradient, also where they are 0."""
    return _strided_as_gradients(nn.Tanh)


@fault("grad_tuple.expanded.activation-*", cause="strided_as_gradient")
def rectifiers_strided_as_their_gradients() -> Target:
    """The gradient of a rectifier has the strides of the output gradient, also where they are 0."""
    return _strided_as_gradients(nn.ReLU, nn.GELU, nn.SiLU, nn.ELU)


@fault("grad_tuple.expanded.softmax-*", cause="strided_as_gradient")
def softmax_strided_as_its_gradient() -> Target:
    """The gradient of a softmax has the strides of the output gradient, also where they are 0."""
    return _strided_as_gradients(nn.Softmax, nn.LogSoftmax)
