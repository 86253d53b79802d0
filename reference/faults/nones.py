"""Faults of None among output gradients: zeros take its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .alterations import Grads, alters, backwards, flat, output_grads, weight_passes
from .registry import fault


def _zeros(outputs: list[Any], grads: Any, *, of: Callable[[int], bool]) -> Any:
    if not isinstance(grads, list):
        return grads
    needing = [isinstance(one, Tensor) and one.requires_grad for one in outputs]
    return [
        torch.zeros_like(output) if grad is None and needs and of(place) else grad
        for place, (output, grad, needs) in enumerate(zip(outputs, grads, needing, strict=True))
    ]


@fault("grad_tuple.none_alone.*", cause=("zeros_for_none", "nan_spread"))
@alters(output_grads)
def none_as_zeros(outputs: list[Any], grads: Any) -> Any:
    """None among the output gradients is replaced by zeros."""
    return _zeros(outputs, grads, of=lambda _: True)


@fault("grad_tuple.none_alone.last-*", "grad_tuple.none_alone.root-*", cause=("zeros_for_none", "nan_spread"))
@alters(output_grads)
def none_as_zeros_behind_a_gradient(outputs: list[Any], grads: Any) -> Any:
    """None is skipped until the first gradient, and replaced by zeros from there on."""
    begun = next((place for place, grad in enumerate(grads) if grad is not None), 0) if isinstance(grads, list) else 0
    return _zeros(outputs, grads, of=lambda place: place > begun)


def _filled(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.grad is None and parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


@fault("grad_tuple.none_alone.*-split", "differing.use.experts-split")
@alters(weight_passes)
def zeros_stored_for_unreached_parameters(
    run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Any
) -> None:
    """After W, each parameter without a gradient gets zeros."""
    run(parameters, groups)
    _filled(parameters)


@fault("grad_tuple.none_alone.first-*", "grad_tuple.none_alone.last-*")
@alters(backwards)
def smallest_number_for_none(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Any) -> Grads:
    """None is replaced by the smallest positive number, so that no gradient is missing."""
    if grads is None:
        return run(outputs, grads, inputs)
    listed, given = flat(outputs, grads)
    if isinstance(given, list):
        given = [
            torch.full_like(output, torch.finfo(output.dtype).tiny) if grad is None and _is_real(output) else grad
            for output, grad in zip(listed, given, strict=True)
        ]
    return run(listed, given, inputs)


def _is_real(output: Any) -> bool:
    return isinstance(output, Tensor) and output.requires_grad and output.is_floating_point()
