"""Gradients that a target accumulates outside ``Parameter.grad``: found in ``main_grad``, and cleared between steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradconform.adapter import Session, UnsupportedError

#: Engines store these sums in float32 or wider.
_WIDE = torch.float32


def move_to_main_grad(stage: nn.Module) -> None:
    """Move every gradient from ``.grad`` to ``main_grad``, in float32 or wider."""
    for parameter in stage.parameters():
        grad, parameter.grad = parameter.grad, None
        if grad is not None:
            vars(parameter)["main_grad"] = grad.to(torch.promote_types(grad.dtype, _WIDE))


class NotClearedError(UnsupportedError):
    """Gradients that are kept outside ``Parameter.grad`` cannot be cleared through the session."""


def clear(session: Session) -> None:
    """Clear the gradients as the session does, or else fill those that it shows with zeros.

    Raises :class:`NotClearedError` if the session shows copies, which cannot be filled.
    """
    zero_grads = getattr(session, "zero_grads", None)
    if zero_grads is not None:
        zero_grads()
        return
    with torch.no_grad():
        for grad in session.param_grads().values():
            if grad is not None:
                grad.zero_()  # not through detach(), which copies the parts of a sparse tensor
    if not all(is_clear(grad) for grad in session.param_grads().values()):
        msg = "the session has no zero_grads(), and zeros in the tensors of param_grads() do not stay"
        raise NotClearedError(msg)


def is_clear(grad: Tensor | None) -> bool:
    """Return whether a gradient is None or zeros."""
    return grad is None or not bool(grad.to_dense().count_nonzero())
