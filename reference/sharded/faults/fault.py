"""The list of wrong sharded stages, and the regions with which they communicate wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

#: The faults by name: the kind of check that fails, and the kind of its cause, empty if none is named.
FAULTS: dict[str, tuple[str, str]] = {}

_S = TypeVar("_S", bound=type)


def fault(kind: str, cause: str = "") -> Callable[[_S], _S]:
    """Add a stage to the faults."""

    def added(stage: _S) -> _S:
        FAULTS[stage.__name__] = (kind, cause)
        return stage

    return added


class _Region(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.back = back
        return there(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(grads[0]), None, None


def region(value: Tensor, there: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``there`` of a tensor; its backward applies ``back`` to the gradient."""
    found: Tensor = _Region.apply(value, there, back)  # type: ignore[no-untyped-call] # so is torch's
    return found


def as_it_is(value: Tensor) -> Tensor:
    """Return the value unchanged."""
    return value.view_as(value)
