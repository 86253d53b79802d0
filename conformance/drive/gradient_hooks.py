"""Hooks on parameters that change gradients, as clipping, masking and sharding hooks do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn

#: The factor of a hook: exact in every dtype, and not a count of micro-batches.
HOOK_FACTOR = 4.0


def scaled(grad: Tensor | None) -> Tensor | None:
    """Return the gradient scaled, as a scaling hook returns it; a custom function may have passed None."""
    return None if grad is None else grad * HOOK_FACTOR


#: The largest element that a clipping hook leaves: below many gradients of the stages, above others.
HOOK_LIMIT = 2.0


def clipped(grad: Tensor | None) -> Tensor | None:
    """Return the gradient with no element beyond the limit: the sum of clipped parts is another value."""
    return None if grad is None else grad.clamp(-HOOK_LIMIT, HOOK_LIMIT)


#: What a hook on a parameter returns, by what it does.
HOOKS: Mapping[str, Callable[[Tensor | None], Tensor | None]] = {"scale": scaled, "clip": clipped}


class GradientHooks:
    """Hooks on every parameter of a stage.

    ``scale`` multiplies its gradient, ``clip`` limits its elements, and ``move`` takes it out of ``.grad``.
    """

    def __init__(self, stage: nn.Module, how: str) -> None:
        """Install the hooks; they stay as long as the stage lives."""
        self.how = how
        self.moved: dict[str, Tensor | None] = {}
        for name, parameter in stage.named_parameters():
            self.moved[name] = None
            if parameter.requires_grad and how in HOOKS:
                parameter.register_hook(HOOKS[how])
            elif parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(partial(self._move, name))

    def stored(self, param_grads: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
        """Return the parameters' gradients: the moved ones if the hooks move them."""
        return dict(self.moved if self.how == "move" else param_grads)

    def _move(self, name: str, parameter: Tensor) -> None:
        held, grad = self.moved[name], parameter.grad
        if grad is not None:
            self.moved[name], parameter.grad = grad if held is None else held + grad, None
