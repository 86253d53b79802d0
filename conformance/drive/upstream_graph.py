"""An earlier graph of the process, whose outputs a stage receives, and which continues with the input gradients.

As in torch's runtime with two consecutive stages in one process, the stage receives leaves on the memory of the
outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradconform.devices.tensor_facts import place_of


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, with NaN in the same places."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


class _PassedOn(torch.autograd.Function):
    """Passes values on, and the gradient back; saves its outputs, as exp and softmax do."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, start: Tensor) -> Tensor:
        """Return a copy of the values."""
        del start
        made = values.clone()
        ctx.save_for_backward(made)
        ctx.values = values
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return the gradient; raise ``RuntimeError`` if the saved outputs were overwritten."""
        (made,) = ctx.saved_tensors
        if (made.numel() and not place_of(made)) or not _same(made, ctx.values):
            msg = "an output of the earlier graph was freed or overwritten"
            raise RuntimeError(msg)
        return None, grads[0]


class UpstreamGraph:
    """Arguments of one stage as leaves on the memory of an earlier graph's outputs.

    The graph has one parameter per argument, which gets the sum of the input gradients of all micro-batches.
    """

    def __init__(self) -> None:
        self._starts: dict[int, Tensor] = {}
        self._sums: dict[int, Tensor] = {}
        self._outputs: dict[int, list[Any]] = {}
        self._returned: dict[int, list[Tensor | None]] = {}

    def args(self, mb: int, args: Sequence[Any]) -> tuple[Any, ...]:
        """Return the arguments of a micro-batch on the memory of outputs; those without a gradient are unchanged."""
        made = [self._passed_on(arg, slot) for slot, arg in enumerate(args)]
        self._outputs[mb] = made
        return tuple(arg if one is None else one.detach().requires_grad_() for arg, one in zip(args, made, strict=True))

    def _passed_on(self, arg: Any, slot: int) -> Tensor | None:
        if not (isinstance(arg, Tensor) and arg.requires_grad):
            return None
        if slot not in self._starts:
            self._starts[slot] = torch.zeros_like(arg.detach()).requires_grad_()
        with torch.enable_grad():
            made: Tensor = _PassedOn.apply(arg.detach(), self._starts[slot])  # type: ignore[no-untyped-call] # so is torch's
        return made

    def returned(self, mb: int, grads: Sequence[Tensor | None]) -> None:
        """Store the input gradients of a micro-batch as they are returned."""
        self._returned[mb] = [grad.detach().clone() if isinstance(grad, Tensor) else None for grad in grads]

    def go_on(self) -> dict[str, str]:
        """Run the graph's backward of all micro-batches that have returned; return the errors, by name."""
        wrong: dict[str, str] = {}
        for mb in list(self._returned):
            for slot, (made, grad) in enumerate(zip(self._outputs.pop(mb), self._returned.pop(mb), strict=False)):
                if made is not None and (grad is None or grad.shape == made.shape):
                    problem = self._gone_on(slot, made, grad)
                    wrong |= {f"the earlier graph's gradient for argument {slot}": problem} if problem else {}
        return wrong

    def _gone_on(self, slot: int, made: Tensor, grad: Tensor | None) -> str:
        if grad is not None:
            self._sums[slot] = grad if slot not in self._sums else self._sums[slot] + grad
            try:
                with torch.enable_grad():
                    made.backward(grad)
            except RuntimeError as error:
                return f"cannot be computed any more: {str(error).partition('. ')[0]}"
        found, expected = self._starts[slot].grad, self._sums.get(slot)
        right = found is expected if found is None or expected is None else _same(found, expected)
        return "" if right else "is not the sum of the input gradients that were returned"
