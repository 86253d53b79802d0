"""Faults of numbers: the right tensor in the right place with wrong elements, dtype or layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.target.resolve import Target
from gradconform.trees import tensors

from .alterations import (
    Grads,
    Graph,
    alters,
    backwards,
    each_input_grad,
    every_grad,
    input_grads,
    output_grads,
    param_grads,
    stored_as,
    target,
)
from .registry import fault


def _real(grad: Tensor) -> bool:
    return grad.is_floating_point() and grad.layout == torch.strided


@fault(
    "*.gradients.mlp",
    "*.loss.mlp",
    cause={"kind": "rounded", "names": ["bfloat16"]},
    dtypes=("float32", "float64"),
    elsewhere="within the bound: bfloat16 does not change, and the loss of float16 is near its own rounding",
)
def rounded_through_bfloat16() -> Target:
    """Every gradient is rounded to bfloat16 and converted back."""
    return target(every_grad(lambda grad: grad.bfloat16().to(grad.dtype) if _real(grad) else grad))


@fault(
    "*.gradients.mlp",
    "*.gradients.linear-3d",
    "*.gradients.attention-mask",
    "*.gradients.lstm",
    cause={"kind": "relative_error", "factors": [1e-5]},
    dtypes=("float32", "float64"),
    elsewhere="lost in rounding: the dtype holds no relative error of 1e-5",
)
def relative_error_1e_5() -> Target:
    """Every gradient is too large by one part in 100,000."""
    return target(every_grad(lambda grad: grad * (1 + 1e-5)))


@fault(
    "*.gradients.mlp",
    "*.gradients.linear-3d",
    cause={"kind": "relative_error", "factors": [3e-6]},
    dtypes=("float32", "float64"),
    elsewhere="lost in rounding: the dtype holds no relative error of 3e-6",
)
def relative_error_3e_6() -> Target:
    """Every gradient is too large by three parts in a million."""
    return target(every_grad(lambda grad: grad * (1 + 3e-6)))


@fault("*.gradients.mlp", "*.gradients.conv2d", cause="one_element")
@alters(every_grad)
def one_element_wrong(grad: Tensor) -> Tensor:
    """The largest element of every gradient is too large by 0.1 %, or by 64 eps if that is more."""
    if not _real(grad) or not grad.numel():
        return grad
    wrong = grad.clone(memory_format=torch.contiguous_format)
    wrong.view(-1)[wrong.abs().argmax()] *= 1.0 + max(1e-3, 64.0 * torch.finfo(grad.dtype).eps)
    return wrong


@fault("grad_tuple.nonfinite.nan-*", cause="nan_replaced")
def nan_replaced() -> Target:
    """NaN is replaced by zero."""
    return target(every_grad(lambda grad: torch.where(torch.isnan(grad), 0.0, grad) if _real(grad) else grad))


@fault("grad_tuple.nonfinite.inf-*", cause="inf_clipped")
@alters(every_grad)
def inf_clipped(grad: Tensor) -> Tensor:
    """Infinities are clipped to the largest finite number."""
    limit = torch.finfo(grad.dtype).max if grad.is_floating_point() else 0.0
    return torch.where(torch.isinf(grad), grad.sign() * limit, grad) if _real(grad) else grad


@fault("grad_tuple.nonfinite.nan-*", cause="nan_spread")
def nan_spreads() -> Target:
    """One NaN makes the whole gradient NaN, as a division by its norm would."""
    return target(every_grad(lambda grad: grad * (grad.sum() * 0.0 + 1.0) if _real(grad) else grad))


@fault("*.gradients.square-weight", "*.gradients.tied-adjacent", cause="transposed")
def square_gradient_transposed() -> Target:
    """A square gradient is transposed."""
    return target(every_grad(lambda grad: grad.t() if grad.dim() == 2 and len(set(grad.shape)) == 1 else grad))


@fault("*.gradients.mlp", cause={"kind": "divided", "names": ["the batch size"]})
@alters(output_grads)
def scaled_by_the_batch(_: list[Any], grads: Any) -> Any:
    """Output gradients are divided by the number of rows, as a mean over the batch would."""
    divided = [grad / max(len(grad), 1) if isinstance(grad, Tensor) and grad.dim() else grad for grad in grads]
    return divided if isinstance(grads, list) else grads


@fault(
    "*.loss.mlp",
    "accumulate.iterations.split-10-deferred",
    cause={"kind": "scaled", "factors": [0.5]},
    takes="start=loss",
)
@alters(backwards)
def loss_divided(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """A backward from a loss starts with one half."""
    if grads is None:
        outputs = tensors(outputs)
        grads = [torch.full_like(loss, 0.5) for loss in outputs]
    return run(outputs, grads, inputs)


@fault("*.gradients.mlp")
@alters(each_input_grad)
def returned_in_float64(_: Any, grad: Tensor) -> Tensor:
    """Input gradients are returned in float64, or in float32 if they are float64."""
    other = torch.float32 if grad.dtype == torch.float64 else torch.float64
    return grad.to(other) if _real(grad) else grad


@fault("*.gradients.batch-of-one")
def dimensions_of_one_squeezed() -> Target:
    """Dimensions of size one are squeezed out of input gradients."""
    return target(each_input_grad(lambda _, grad: grad.squeeze()))


@fault("*.gradients.embedding-sparse", "*.loss.embedding-sparse", takes="parameters=sparse")
@alters(stored_as)
def sparse_gradient_made_dense(parameters: list[nn.Parameter]) -> None:
    """A sparse parameter gradient is made dense."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


@fault("*.gradients.complex", "*.gradients.complex-parameter", cause="conjugated")
def complex_gradient_conjugated() -> Target:
    """A complex gradient is conjugated."""
    return target(every_grad(lambda grad: grad.conj().resolve_conj() if grad.is_complex() else grad))


@fault(
    "space.*.64-bit-gain-*",
    cause={"kind": "rounded", "names": ["float32"]},
    dtypes=("float32",),
    elsewhere="the terms of a float64 gradient have few bits, or no parameter has another dtype",
    takes="dtype=64-bit-gain",
)
def float64_gradient_through_the_dtype_of_the_others() -> Target:
    """The gradient of a float64 parameter is rounded to the dtype of the other parameters."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        others = {one.dtype for one in graph.parameters()} - {torch.float64}
        wide = parameter.dtype == torch.float64 and len(others) == 1
        return added.to(others.pop()).to(added.dtype) if wide else added

    return target(param_grads(edit))


@fault(
    "space.*.narrow-gain-*",
    cause="rounded",
    dtypes=("float32", "float64"),
    elsewhere="all parameters have 16 bits, or the gain has as many bits as the others",
    takes="dtype=narrow-gain",
)
def bucket_in_the_narrowest_dtype() -> Target:
    """One bucket holds all gradients, in the narrowest dtype of any parameter."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        del parameter
        narrowest = min((one.dtype for one in graph.parameters()), key=lambda dtype: dtype.itemsize)
        return added.to(narrowest).to(added.dtype) if narrowest.itemsize == 2 else added

    return target(param_grads(edit))


@fault(
    "space.*.graded-gain-*",
    cause="rounded",
    dtypes=("bfloat16", "float16"),
    elsewhere="a sum of few gradients in the parameter's dtype can be exact, and that of float64 is narrower",
    takes="dtype=graded-gain",
)
def gradient_in_the_dtype_of_its_parameter() -> Target:
    """A gradient that is accumulated in another dtype is rounded to the dtype of its parameter."""

    def rounding(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            grad = parameter.grad
            if grad is not None and grad.dtype != parameter.dtype:
                grad.copy_(grad.to(parameter.dtype))

    return stored_as(rounding)


@fault("space.*.half-input-*", takes="inputs=half-input")
@alters(input_grads)
def input_gradients_in_one_dtype(inputs: Sequence[Any], grads: Grads) -> Grads:
    """All input gradients are returned in the dtype of the first."""
    floats = [one.dtype for one in inputs if isinstance(one, Tensor) and one.is_floating_point()]
    return tuple(grad if grad is None or grad.is_complex() else grad.to(floats[0]) for grad in grads)


@fault("*.gradients.complex", "*.gradients.complex-parameter", cause="imaginary_lost")
def imaginary_part_lost() -> Target:
    """A complex gradient loses its imaginary part."""
    return target(every_grad(lambda grad: grad.real.to(grad.dtype) if grad.is_complex() else grad))


@fault("*.gradients.mlp", cause="first_row_repeated")
def first_row_used_for_all() -> Target:
    """The first row of a gradient is used for all its rows."""

    def edit(grad: Tensor) -> Tensor:
        rows = grad.layout is torch.strided and grad.dim() > 1 and grad.shape[0] > 1
        return grad[:1].expand(grad.shape).contiguous() if rows else grad

    return target(every_grad(edit))
