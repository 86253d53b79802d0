"""Layers with a backward of their own, as libraries of kernels put them in the place of torch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform import swap
from gradconform.adapter import Session, StageSpec
from gradconform.reference.autograd import AutogradSession
from gradconform.reference.deferred_linear import product

from .rebuilt import StageTarget

_WITHHELD = (
    "split mixed weight_before_input autocast complex changed_in_flight shared_module recomputes parameter_input"
)


def _swapped(kind: type[nn.Module], layer: Callable[[Any], Callable[..., Any]], name: str) -> StageTarget:
    """Return an adapter of plain autograd on stages whose layers of one type compute as ``layer`` does."""

    def opened(stage: nn.Module, spec: StageSpec) -> Session:
        swap(stage, kind, layer)
        return AutogradSession(stage, spec)

    return StageTarget(name, opened, _WITHHELD)


# unsloth-4533


class _Norm(torch.autograd.Function):
    """A norm over the last dimension, with the sums of its backward written out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, how: tuple[float, bool]) -> Tensor:
        eps, ctx.trains = how
        mean = x.mean(-1, keepdim=True)
        scale = (x.var(-1, unbiased=False, keepdim=True) + eps).rsqrt()
        normed = (x - mean) * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight if bias is None else normed * weight + bias

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, weight = ctx.saved_tensors
        (grad,) = grads
        rows = tuple(range(grad.dim() - 1))
        inner = grad * weight
        of_input = scale * (inner - inner.mean(-1, keepdim=True) - normed * (inner * normed).mean(-1, keepdim=True))
        of_weight = (grad * normed).sum(rows) if ctx.trains and ctx.needs_input_grad[1] else None
        of_bias = grad.sum(rows) if ctx.needs_input_grad[2] else None
        return of_input if ctx.needs_input_grad[0] else None, of_weight, of_bias, None


def _norm(module: nn.LayerNorm, *, trains: bool) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        if not module.elementwise_affine or len(module.normalized_shape) > 1:
            return F.layer_norm(x, module.normalized_shape, module.weight, module.bias, module.eps)
        normed: Tensor = _Norm.apply(x, module.weight, module.bias, (module.eps, trains))  # type: ignore[no-untyped-call] # so is torch's
        return normed

    return forward


norm_trains_weight = _swapped(nn.LayerNorm, partial(_norm, trains=True), "norm-trains-weight")
norm_leaves_weight = _swapped(nn.LayerNorm, partial(_norm, trains=False), "norm-leaves-weight")


# apex-1430


class _Softmax(torch.autograd.Function):
    """A softmax whose backward computes in a buffer that is the incoming gradient's, or one of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, in_place: bool) -> Tensor:  # noqa: FBT001 (apply takes no names)
        y = torch.softmax(x, dim)
        ctx.save_for_backward(y)
        ctx.dim, ctx.in_place = dim, in_place
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        grad = grads[0] if ctx.in_place else grads[0].clone()
        grad.sub_((grad * y).sum(ctx.dim, keepdim=True)).mul_(y)
        return grad, None, None


def _softmax(module: nn.Softmax, *, in_place: bool) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        dim = module.dim if isinstance(module.dim, int) else -1
        y: Tensor = _Softmax.apply(x, dim, in_place)  # type: ignore[no-untyped-call] # so is torch's
        return y

    return forward


softmax_apart = _swapped(nn.Softmax, partial(_softmax, in_place=False), "softmax-apart")
softmax_in_place = _swapped(nn.Softmax, partial(_softmax, in_place=True), "softmax-in-place")


# Liger-Kernel-1251, flash-attention-355 and pytorch-177116: a product, and what becomes of its gradients.

_Products = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class _Product(torch.autograd.Function):
    """A Linear whose two products of the backward are somebody's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, products: _Products) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.products = products
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_bias = grads[0].flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        of_input, of_weight = ctx.products(x, weight, grads[0])
        needs = ctx.needs_input_grad
        return of_input if needs[0] else None, of_weight if needs[1] else None, of_bias, None


def _products(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of the input and of the weight."""
    return grad @ weight, grad.flatten(0, -2).T @ x.flatten(0, -2)


def _into_input(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Write the gradient of the input over the input, as a kernel does that autograd knows nothing of."""
    of_input, of_weight = _products(x, weight, grad)
    x.data.copy_(of_input)
    return x.data, of_weight


def _as_rows(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Read the incoming gradient by its address and the length of its rows alone."""
    held = grad.untyped_storage().nbytes() // grad.element_size() - grad.storage_offset()
    steps = [1] * grad.dim()
    for dim in range(grad.dim() - 2, -1, -1):
        steps[dim] = steps[dim + 1] * grad.shape[dim + 1]
    read = grad.as_strided(grad.shape, steps) if held >= grad.numel() else grad
    return _products(x, weight, read)


_POOL: list[Tensor] = []
_POOLED = 2**15


def _pooled(x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Compute large gradients in memory that a pass of another shape has left, where that was not cleared."""
    of_input, of_weight = _products(x, weight, grad)
    if of_input.numel() > _POOLED and _POOL and _POOL[0].shape != of_input.shape:
        stale = _POOL[0].flatten().to(of_input)
        flat = of_input.flatten()
        flat[: len(stale)] += 1000.0 * stale[: len(flat)]
        of_input = flat.view_as(of_input)
    _POOL[:] = [of_input.detach().clone()]
    return of_input, of_weight


def _linear(module: nn.Linear, *, products: _Products) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        if x.dim() < 2:  # noqa: PLR2004 (a lone row)
            return F.linear(x, module.weight, module.bias)
        y: Tensor = _Product.apply(x, module.weight, module.bias, products)  # type: ignore[no-untyped-call] # so is torch's
        return y

    return forward


linear = _swapped(nn.Linear, partial(_linear, products=_products), "linear")
linear_into_input = _swapped(nn.Linear, partial(_linear, products=_into_input), "linear-into-input")
linear_as_rows = _swapped(nn.Linear, partial(_linear, products=_as_rows), "linear-as-rows")
linear_pooled = _swapped(nn.Linear, partial(_linear, products=_pooled), "linear-pooled")


# Liger-Kernel-1298


class _Ahead(torch.autograd.Function):
    """A tanh whose gradient is computed in the forward, and multiplied by what comes in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first_alone: bool) -> Tensor:  # noqa: FBT001 (apply takes no names)
        y = torch.tanh(x)
        ctx.save_for_backward(1.0 - y * y)
        ctx.first_alone = first_alone
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (ahead,) = ctx.saved_tensors
        came = grads[0].flatten()[0] if ctx.first_alone and grads[0].numel() else grads[0]
        return ahead * came, None


def _tanh(_: nn.Tanh, *, first_alone: bool) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        y: Tensor = _Ahead.apply(x, first_alone)  # type: ignore[no-untyped-call] # so is torch's
        return y

    return forward


tanh_ahead = _swapped(nn.Tanh, partial(_tanh, first_alone=False), "tanh-ahead")
tanh_by_first = _swapped(nn.Tanh, partial(_tanh, first_alone=True), "tanh-by-first")


class _Scores(nn.Module):
    """Hands on scores, and the probabilities that they are."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.softmax = nn.Linear(5, 7), nn.Softmax(-1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores: Tensor = self.linear(x)
        return scores, self.softmax(scores)


def softmax_stage() -> nn.Module:
    """Return a stage that ends with a softmax."""
    stage = _Scores()
    vars(stage)["example_args"] = (torch.zeros(3, 5),)
    return stage
