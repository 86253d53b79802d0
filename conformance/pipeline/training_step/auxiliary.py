"""Losses inside stages: each enters the backward where it is computed, times a scale that the runtime sets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

#: A number that bfloat16 represents exactly, although it cannot represent three times that number.
_TALLIED = 1.0 + 2.0**-7


class _Add(torch.autograd.Function):
    """Returns its input, and adds a separate loss to the backward there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.like = scale, (loss.dtype, loss.device)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        dtype, device = ctx.like
        return grads[0], torch.full((), ctx.scale, dtype=dtype, device=device), None


def with_loss(x: Tensor, loss: Tensor, scale: float) -> Tensor:
    """Return ``x``; its backward adds the gradient of the 0-d ``loss``, times ``scale``."""
    added: Tensor = _Add.apply(x, loss, scale)  # type: ignore[no-untyped-call] # so is torch's
    return added


class AuxiliaryLoss(nn.Module):
    """A loss inside an inner stage, as in a mixture of experts: how evenly a gate distributes tokens.

    Its gradient enters the backward there, times ``auxiliary_scale``, which a runtime must set.
    """

    auxiliary_scale: float = 1.0

    def __init__(self, width: int, *, summed: bool, tallied: bool) -> None:
        """Create the gate; the loss is ``summed`` over tokens, or one of their mean.

        ``tallied`` adds a parameter whose gradients reveal a sum in less than float32.
        """
        super().__init__()
        self.summed = summed
        self.gate = nn.Linear(width, 3, bias=False)
        self.tally = nn.Parameter(torch.zeros(2)) if tallied else None

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, with the loss attached."""
        share = torch.softmax(self.gate(x), -1).flatten(0, -2)
        loss = share.square().sum() if self.summed else share.mean(0).square().sum()
        if self.tally is not None:
            loss = loss + _TALLIED * self.tally.sum()
        return with_loss(x, loss, self.auxiliary_scale)


class SecondLoss(nn.Module):
    """The prediction of the token after the next, as in multi-token prediction; its loss enters the backward here.

    It uses the head of the model and its embedding, of which it has a tied copy if that is in another stage. The
    gradient of its loss is multiplied by ``second_scale``, which a runtime must set. If it divides the head over ranks,
    it must also set ``second_loss``.
    """

    second_scale: float = 1.0

    def __init__(self, width: int, copied: nn.Embedding | None, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Create the layer that joins a position's numbers with the next token's; ``copied`` is the tied copy."""
        super().__init__()
        self.joined = nn.Linear(2 * width, width)
        self.embedding, self.second_loss = copied, loss

    def forward(self, x: Tensor, following: Tensor, target: Tensor, embedding: nn.Module, head: nn.Module) -> Tensor:
        """Return ``x`` with the loss attached; ``following`` are the next tokens, ``target`` those after them."""
        hidden = torch.tanh(self.joined(torch.cat((x, embedding(following)), -1)))
        return with_loss(x, self.second_loss(head(hidden), target), self.second_scale)
