"""Right variants that accumulate into ``Parameter.main_grad``, as Megatron-core does; ``.grad`` stays None."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.reference.deferred_linear import WeightGradStore

from .deferring import Swapped
from .sessions import EARLY, Session, adapter


def add_to_main_grad(parameter: Any, grad: Tensor) -> None:
    """Add to ``main_grad``, of float32 or wider, which the first gradient creates."""
    main: Tensor | None = getattr(parameter, "main_grad", None)
    if main is None:
        parameter.main_grad = grad.to(torch.promote_types(grad.dtype, torch.float32), copy=True)
    elif main.layout == grad.layout:
        main.add_(grad)
    else:  # a sparse sum takes no dense gradient
        parameter.main_grad = main + grad if main.layout is torch.strided else grad + main


class MainGradSession(Session):
    """Moves every gradient from ``.grad`` to ``main_grad`` in a hook after its accumulation."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Create a session; hooks are set in each forward, because parameters may be thawed or replaced."""
        super().__init__(stage, spec)
        self.hooked: dict[Tensor, Any] = {}

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        """Set hooks on the currently trained parameters, and run."""
        for parameter in self.trainable.values():
            if parameter not in self.hooked:
                self.hooked[parameter] = parameter.register_post_accumulate_grad_hook(self.accumulated)
        return super().forward(mb, args, target)

    def accumulated(self, parameter: Tensor) -> None:
        """Move one gradient, unless another session on the same parameter already did."""
        grad, parameter.grad = parameter.grad, None
        if grad is not None:
            add_to_main_grad(parameter, grad)

    def zero_grads(self) -> None:
        """Fill every ``main_grad`` with zeros."""
        for parameter in self._parameters.values():
            main = getattr(parameter, "main_grad", None)
            if main is not None:
                main.zero_()

    def param_grads(self) -> dict[str, Tensor | None]:
        """Return ``main_grad`` of every parameter; None if it got no gradient."""
        return {name: getattr(parameter, "main_grad", None) for name, parameter in self._parameters.items()}

    def close(self) -> None:
        """Remove the hooks."""
        super().close()
        for handle in self.hooked.values():
            handle.remove()
        self.hooked.clear()


class DenseSession(MainGradSession):
    """Keeps every ``main_grad`` dense, as a buffer for a reduction is, also for a sparse gradient."""

    def accumulated(self, parameter: Tensor) -> None:
        """Move one gradient as a dense tensor."""
        if parameter.grad is not None:
            parameter.grad = parameter.grad.to_dense()
        super().accumulated(parameter)


class _EachUse(WeightGradStore):
    """Adds each use of a weight separately, by a function."""

    def __init__(self, add: Callable[[Tensor, Tensor], None]) -> None:
        """Store the function that adds a use."""
        super().__init__()
        self._add = add

    def take(self) -> Callable[[], None]:
        """Return a function that adds all weight gradients deferred since the last call."""
        taken, self._left = self._left, []

        def accumulate() -> None:
            for weight, gradient in taken:
                if weight.requires_grad:
                    self._add(weight, gradient())

        return accumulate


class KernelSession(Swapped, MainGradSession):
    """Replaces Linears by layers that add the weight's gradient to ``main_grad`` themselves, as fused kernels do."""

    def make_store(self) -> WeightGradStore:
        """Return the store that adds to ``main_grad``."""
        return _EachUse(self.add)

    def add(self, weight: Tensor, grad: Tensor) -> None:
        """Add one use of a weight."""
        add_to_main_grad(weight, grad)


#: What is claimed of a kernel session: it knows nothing of hooks and autocast, and reads weights in the backward.
KERNEL: dict[str, Any] = {
    **EARLY,
    "hooks": "nowhere",
    "grads_in_param_grad": False,
    "autocast": False,
    "shared_module": False,
}

VARIANTS: dict[str, Callable[[], object]] = {
    "main-grad-by-hooks": partial(adapter, MainGradSession, grads_in_param_grad=False),
    "main-grad-always-dense": partial(adapter, DenseSession, grads_in_param_grad=False),
    "main-grad-in-the-kernel": partial(adapter, KernelSession, **KERNEL),
}
