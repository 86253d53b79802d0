"""Faults that depend on the calls of a session: their order, and the caller's changes between them."""

from __future__ import annotations

from typing import Any

from gradconform.target.functions import FunctionsSession
from gradconform.trees import tensors

from .alterations import (
    Grads,
    alters,
    with_session,
)
from .registry import fault


@fault("space.split.mixed-*", cause={"kind": "missing", "microbatches": [1]}, takes="order=mixed")
@alters(with_session)
class SplitOrFullAtTheFirstBackward(FunctionsSession):
    """The first backward decides whether all are split: after a B, W does nothing."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        vars(self)["full"] = True
        return super().backward(mb, output_grads)

    def backward_weight(self, mb: int) -> Grads | None:
        return self._contexts.pop(mb) and None if vars(self).get("full") else super().backward_weight(mb)


@fault("accumulate.iterations.full-3", cause="cleared", takes="order=at-once mixed")
@alters(with_session)
class ForwardBehindABackwardBeginsAStep(FunctionsSession):
    """A forward after a B is taken for the first of a step, and the gradients of the current step are dropped."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        if vars(self).pop("accumulated", False):
            for parameter in self._stage.parameters():
                parameter.grad = None
        return super().forward(mb, args, target)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        vars(self)["accumulated"] = True
        return super().backward(mb, output_grads)

    def finish(self) -> None:
        vars(self).pop("accumulated", None)
        super().finish()


def _largest(grads: Any) -> float:
    return max((float(grad.detach().abs().max()) for grad in tensors(grads) if grad.numel()), default=0.0)


@fault("space.split.overwrites-*", takes="caller=overwrites")
@alters(with_session)
class ScaledByWhatWasReturned(FunctionsSession):
    """W reads the scale of its gradients from the returned input gradients, which their owner may overwrite."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        found = super().backward_input(mb, output_grads)
        vars(self).setdefault("scales", {})[mb] = found, _largest(found)
        return found

    def backward_weight(self, mb: int) -> Grads | None:
        found, largest = vars(self)["scales"].pop(mb)
        now = _largest(found)
        for group in self._contexts[mb] if now != largest else ():
            scale = now / (largest or 1.0)
            group["grads"] = [tuple(None if grad is None else grad * scale for grad in some) for some in group["grads"]]
        return super().backward_weight(mb)
