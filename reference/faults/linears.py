"""Faults of an implementation's own Linear, which it puts in place of torch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradconform.reference.deferred_linear import product
from gradconform.target.functions import FunctionsSession
from gradconform.target.layer_swap import swap
from gradconform.target.resolve import Target

from .alterations import alters, with_session
from .registry import fault


def _unchanged(x: Tensor) -> Tensor:
    return x


def _of_weight(rows: Tensor, x: Tensor) -> Tensor:
    return rows.T @ x.conj()


def _of_input(grad: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    del bias
    return grad @ weight.conj()


@dataclass(frozen=True)
class _Ways:
    """How a Linear keeps its activation, and computes the gradients of its weight and of its input."""

    keep: Callable[[Tensor], Tensor] = _unchanged
    of_weight: Callable[[Tensor, Tensor], Tensor] = _of_weight
    of_input: Callable[[Tensor, Tensor, Tensor | None], Tensor] = _of_input


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, ways: _Ways) -> Tensor:
        ctx.save_for_backward(ways.keep(x), weight, bias)
        ctx.ways = ways
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        x, weight, bias = ctx.saved_tensors
        rows = grad.reshape(-1, grad.shape[-1])
        of_bias = rows.sum(0) if ctx.needs_input_grad[2] else None
        of_weight = ctx.ways.of_weight(rows, x.reshape(-1, x.shape[-1]))
        return ctx.ways.of_input(grad, weight, bias), of_weight, of_bias, None


class _Linear(nn.Linear):
    """A Linear with its own product."""

    ways: _Ways

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
        if torch.is_autocast_enabled(input.device.type) or input.dtype != self.weight.dtype:
            return super().forward(input)
        found: Any = _Product.apply(input, self.weight, self.bias, self.ways)  # type: ignore[no-untyped-call] # torch's
        return cast("Tensor", found)


def _with_layers(kind: type[nn.Module], own: type[nn.Module], **attributes: Any) -> Target:
    """Return a target whose layers of a kind are ``own`` ones, with the attributes."""

    class Session(FunctionsSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            swap(self._stage, kind, own, **attributes)

    return with_session(Session)


def _with_linears(ways: _Ways) -> Target:
    """Return a target whose Linears compute in other ways."""
    return _with_layers(nn.Linear, _Linear, ways=ways)


@fault("*.gradients.complex-no-bias", cause="factor_not_conjugated")
@alters(lambda of_input: _with_linears(_Ways(of_input=of_input)))
def conjugated_only_with_a_bias(grad: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The input gradient of a Linear without a bias is computed with the weight, not with its conjugate."""
    return grad @ (weight if bias is None else weight.conj())


@fault("*.gradients.layer-arguments", cause="never_accumulated")
def weight_without_a_bias_left_out() -> Target:
    """A Linear without a bias has no graph if its input needs no gradient."""

    class Linear(_Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
            needed = input.requires_grad or self.bias is not None
            return super().forward(input) if needed else super().forward(input).detach()

    return _with_layers(nn.Linear, Linear, ways=_Ways())


@fault("*.gradients.rows-in-place", raises=True)
def rows_of_rows_returned_as_a_view() -> Target:
    """A Linear of three dimensions returns a view of a Function's result, which no later layer can write to."""

    class Rows(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t()).view(*x.shape[:-1], -1)

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            (grad,) = grads
            x, weight = ctx.saved_tensors
            rows = grad.reshape(-1, grad.shape[-1])
            return grad @ weight.conj(), _of_weight(rows, x.reshape(-1, x.shape[-1])), rows.sum(0)

    class Linear(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
            alike = input.dtype == self.weight.dtype and not torch.is_autocast_enabled(input.device.type)
            if input.dim() != 3 or not alike or self.bias is None:
                return super().forward(input)
            found: Any = Rows.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call] # torch's
            return cast("Tensor", found)

    return _with_layers(nn.Linear, Linear)


@fault("*.gradients.layer-arguments", cause="argument_taken_as")
def padding_trained() -> Target:
    """An embedding of its own gives the row at the padding index a gradient."""
    return _with_embeddings(padded=False, counted=True)


@fault("*.gradients.layer-arguments", cause="argument_taken_as")
def counts_of_rows_ignored() -> Target:
    """An embedding of its own does not divide gradients by how often a row is read, as its argument says."""
    return _with_embeddings(padded=True, counted=False)


def _with_embeddings(*, padded: bool, counted: bool) -> Target:
    class Embedding(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's own name)
            padding = self.padding_idx if padded else None
            frequent = self.scale_grad_by_freq and counted
            return nn.functional.embedding(input, self.weight, padding, scale_grad_by_freq=frequent, sparse=self.sparse)

    return _with_layers(nn.Embedding, Embedding)


@fault("counts.gradients.rows-1537-*", cause="rows_left_out")
@alters(lambda of_weight: _with_linears(_Ways(of_weight=of_weight)))
def last_block_of_rows_dropped(rows: Tensor, x: Tensor) -> Tensor:
    """Above 1,024 rows, a weight gradient is the sum over whole blocks of 1,024 rows."""
    whole = len(rows) // 1024 * 1024 or len(rows)
    return _of_weight(rows[:whole], x[:whole])


@fault("*.gradients.residual-linear", cause="received_written_over")
@alters(lambda of_input: _with_linears(_Ways(of_input=of_input)))
def input_gradient_in_place_of_the_output_gradient(grad: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A square Linear writes its input gradient into the memory of its output gradient."""
    found = _of_input(grad, weight, bias)
    return grad.copy_(found) if found.shape == grad.shape and grad.is_contiguous() else found


@fault("*.gradients.one-address", cause="activations_of_layer", shows_by="memory")
def activations_told_apart_by_address() -> Target:
    """Activations of one address and shape are kept once, so the second Linear gets those of the first."""

    class Session(FunctionsSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self._first: dict[tuple[int, torch.Size], Tensor] = {}
            swap(self._stage, nn.Linear, _Linear, ways=_Ways(keep=self._one))

        def _one(self, x: Tensor) -> Tensor:
            return self._first.setdefault((x.data_ptr(), x.shape), x)

        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            self._first.clear()
            return super().forward(mb, args, target)

    return with_session(Session)
