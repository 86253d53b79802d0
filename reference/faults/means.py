"""Faults of the mean: every element is within its own bound, but all errors have one direction."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.target.resolve import Target
from gradconform.trees import tensors

from .alterations import Functions, Grads, Graph, accumulating, alters, backwards, each_input_grad, param_grads, target
from .registry import fault

#: A relative error that no element shows, by dtype: a few eps, and a fifth of what each element may be off by at most.
SLIGHT = {torch.float64: 4e-15, torch.float32: 5e-7, torch.bfloat16: 1e-2, torch.float16: 2e-3}

#: The largest number of torch.float8_e4m3fn.
_FP8_MAX = 448.0

#: To how many bits a mantissa is rounded at random, the first among them.
_BITS_KEPT = 5

_COARSE = ("bfloat16", "float16")
_FINE = "within the bound of the mean: kernels of a fine dtype differ by as much"


def _slightly_larger(grad: Tensor) -> Tensor:
    error = SLIGHT.get(grad.dtype)
    return grad if error is None else (grad.double() * (1.0 + error)).to(grad.dtype)


@fault("*.bias.*", cause="relative_error")
def parameter_gradients_slightly_large() -> Target:
    """Parameter gradients are too large by a few eps: by 1 % in bfloat16 and 0.2 % in float16."""
    return target(param_grads(lambda _, grad, __: _slightly_larger(grad)))


@fault("*.bias.*", cause="relative_error")
def input_gradients_slightly_large() -> Target:
    """Input gradients are too large by a few eps: by 1 % in bfloat16 and 0.2 % in float16."""
    return target(each_input_grad(lambda _, grad: _slightly_larger(grad)))


@fault("*.bias.loss", cause=("relative_error", "scaled"), takes="start=loss")
@alters(backwards)
def loss_over_one_row_too_few(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """A backward from a loss starts with 64/63, like a mean over 64 rows that divides by 63."""
    if grads is None:
        outputs = tensors(outputs)
        grads = [torch.full_like(loss, 64 / 63) for loss in outputs]
    return run(outputs, grads, inputs)


@fault("*.bias.gradients", cause={"kind": "rounded", "names": ["float8_e4m3fn"]})
@alters(lambda edit: param_grads(lambda _, grad, __: edit(grad)))
def parameter_gradients_through_fp8(grad: Tensor) -> Tensor:
    """Each addition to a parameter gradient is rounded to float8_e4m3fn, scaled to its range."""
    largest = grad.abs().max().double() if grad.numel() and grad.is_floating_point() else 0.0
    if not largest or grad.layout != torch.strided:
        return grad
    scale = _FP8_MAX / largest
    return ((grad.double() * scale).to(torch.float8_e4m3fn).double() / scale).to(grad.dtype)


@fault("*.bias.gradients", cause={"kind": "rounded_to_bits", "counts": [5]})
@alters(lambda edit: param_grads(lambda _, grad, __: edit(grad)))
def parameter_gradients_rounded_at_random(grad: Tensor) -> Tensor:
    """Each addition to a parameter gradient is rounded to five bits, up or down at random and unbiased."""
    if not grad.is_floating_point() or grad.layout != torch.strided:
        return grad
    mantissa, exponent = torch.frexp(grad.double())
    drawn = torch.rand(grad.shape, generator=torch.Generator().manual_seed(grad.numel()), dtype=torch.float64)
    kept = torch.floor(mantissa * 2.0**_BITS_KEPT + drawn.to(grad.device)) / 2.0**_BITS_KEPT
    return torch.ldexp(kept, exponent).to(grad.dtype)


#: Integers of the size of the floats of which a sum is truncated: one less is the next number towards zero.
_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16}


@contextlib.contextmanager
def _sums_towards_zero(parameters: list[nn.Parameter], _: Graph) -> Iterator[None]:
    before = {id(one): one.grad for one in parameters if one.grad is not None and one.grad.dtype in _BITS}
    for parameter in parameters:
        parameter.grad = None if id(parameter) in before else parameter.grad
    yield
    for parameter in parameters:
        held = before.get(id(parameter))
        if held is not None and parameter.grad is not None:
            held.copy_(_truncated(held.double() + parameter.grad.double(), held.dtype))
        parameter.grad = parameter.grad if held is None else held


def _truncated(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the nearest number of ``dtype`` that is not farther from zero."""
    rounded = exact.to(dtype)
    nearer = (rounded.view(_BITS[dtype]) - 1).view(dtype)
    return torch.where(rounded.double().abs() > exact.abs(), nearer, rounded)


@fault("*.bias.gradients", cause="relative_error", dtypes=_COARSE, elsewhere=_FINE)
def sums_truncated() -> Target:
    """Sums of parameter gradients are truncated, not rounded, so that each sum is biased towards zero."""
    functions: Functions = accumulating(_sums_towards_zero)
    return target(functions)
