"""Faults of modes: right only with the default settings of the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target
from gradconform.trees import map_leaves

from .alterations import (
    Backwards,
    Forgiving,
    Grads,
    Graph,
    alters,
    backwards,
    input_grads,
    param_grads,
    target,
    with_session,
)
from .registry import fault


@fault("mode.gradients.eval-batch-norm-*", "mode.gradients.eval-dropout-*", cause="training_mode", takes="mode=eval")
@alters(with_session)
class StagePutIntoTrainingMode(FunctionsSession):
    """A forward sets the stage to training mode, whatever its mode was."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        self._stage.train()
        return super().forward(mb, args, target)


@fault("*.gradients.frozen-norm", cause="training_mode")
@alters(with_session)
class SubmodulesPutIntoTheModeOfTheStage(FunctionsSession):
    """A forward of a stage in training mode puts all its submodules into training mode."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        self._stage.train(self._stage.training)
        return super().forward(mb, args, target)


@fault("*.gradients.frozen-norm", cause="training_mode")
@alters(with_session)
class SubmodulesInTrainingModeAfterABackward(FunctionsSession):
    """B and I put the stage into evaluation mode, and then back into its own, with its submodules."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        with self._evaluating():
            return super().backward(mb, output_grads)

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        with self._evaluating():
            return super().backward_input(mb, output_grads)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        mode = self._stage.training
        self._stage.eval()
        yield
        self._stage.train(mode)


@fault(
    "mode.gradients.autocast-*",
    dtypes=("float32", "float16"),
    elsewhere="autocast to bfloat16 casts neither bfloat16 nor float64",
    takes="mode=autocast",
)
@alters(with_session)
class GradientsInTheDtypeOfAutocast(Backwards):
    """Gradients are returned in the dtype of the outputs, which autocast chose."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        _, outputs = self._forwards[mb]
        dtype = next((one.dtype for one in _tensors(outputs) if one.dtype == torch.bfloat16), None)
        found = backward(mb, output_grads)
        if dtype is None or any(one.dtype is dtype for one in self._stage.parameters()):
            return found
        return tuple(grad if grad is None else grad.to(dtype) for grad in found)


def _tensors(outputs: Any) -> list[Tensor]:
    return [one for one in (outputs if isinstance(outputs, tuple) else (outputs,)) if isinstance(one, Tensor)]


@fault("mode.gradients.no-grad-*", "mode.gradients.together-*", cause="called_without_grad", takes="mode=no-grad")
def backward_left_out_without_grad_mode() -> Target:
    """If gradients are not recorded, B, I and W do nothing, as in an evaluation."""

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        return run(outputs, grads, inputs) if torch.is_grad_enabled() else (None,) * len(inputs)

    return target(backwards(around))


@fault(
    "mode.gradients.thread-*-split",
    "mode.gradients.together-split",
    cause="called_from_another_thread",
    takes="mode=thread",
)
@alters(with_session)
class ContextsOfTheThread(Forgiving):
    """Weight contexts belong to the thread that ran I; W on another thread finds none and does nothing."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        vars(self).setdefault("started", {})[mb] = threading.current_thread()
        return super().backward_input(mb, output_grads)

    def backward_weight(self, mb: int) -> Grads | None:
        if vars(self).get("started", {}).get(mb) is not threading.current_thread():
            return None
        return super().backward_weight(mb)


@fault(
    "mode.gradients.thread-*-full",
    "mode.gradients.together-full",
    "mode.gradients.thread-*-split",
    cause="called_from_another_thread",
    takes="mode=thread",
)
@alters(with_session)
class BackwardOfAnotherThreadLeftOut(Backwards):
    """A B or I on another thread than the forward's is skipped."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        vars(self).setdefault("ran", {})[mb] = threading.current_thread()
        return super().forward(mb, args, target)

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        if vars(self)["ran"][mb] is threading.current_thread():
            return backward(mb, output_grads)
        args, _ = self._forwards.pop(mb)
        self._contexts[mb] = []
        return (None,) * len(args)


@fault("mode.gradients.deterministic-*", cause="unwritten", takes="mode=deterministic")
def sums_in_memory_never_written_to() -> Target:
    """Gradients are added to uninitialized memory that was multiplied by zero instead of cleared."""

    def added(_: nn.Parameter, grad: Tensor, __: Graph) -> Tensor:
        if grad.layout != torch.strided or not torch.are_deterministic_algorithms_enabled():
            return grad  # elsewhere, the content of such memory is random
        # Torch fills it with NaN on the devices of its own tree; what was never written to may hold that on any.
        return torch.full_like(grad, torch.nan).mul_(0.0).add_(grad)

    return target(param_grads(added))


@fault(
    "mode.gradients.default-dtype-*",
    "mode.gradients.together-*",
    dtypes=("float32", "bfloat16", "float16"),
    elsewhere="nothing changes: a float64 gradient stays float64 with any default dtype",
    takes="mode=default-dtype",
)
def sums_in_the_default_dtype() -> Target:
    """Input gradients with the dtype of the first one are added up in tensors of the default dtype."""

    def added(inputs: Sequence[Any], grads: Grads) -> Grads:
        first = next((one.dtype for one in inputs if isinstance(one, Tensor) and one.is_floating_point()), None)
        return tuple(
            grad if grad is None or grad.dtype != first else torch.zeros(grad.shape, device=grad.device) + grad
            for grad in grads
        )

    return target(input_grads(added))


@fault("mode.gradients.forward-thread-*", cause="called_from_another_thread")
@alters(with_session)
class ForwardOfAnotherThreadLeftOut(Backwards):
    """A B or I whose forward ran on another thread than the session was opened on is skipped."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        if threading.current_thread() is not threading.main_thread():
            vars(self).setdefault("foreign", set()).add(mb)
        return super().forward(mb, args, target)

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        if mb not in vars(self).get("foreign", ()):
            return backward(mb, output_grads)
        args, _ = self._forwards.pop(mb)
        self._contexts[mb] = []
        return (None,) * len(args)


@fault("mode.gradients.forward-thread-*", raises=True, cause="other_forward")
@alters(with_session)
class NewestForwardOfAnotherThread(Backwards):
    """A B or I takes the newest forward that ran on another thread, whatever its micro-batch."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        outputs = super().forward(mb, args, target)
        if threading.current_thread() is not threading.main_thread():
            vars(self)["newest"] = self._forwards[mb]
        return outputs

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        newest = vars(self).pop("newest", None)
        if newest is not None:
            self._forwards[mb] = newest
        return backward(mb, output_grads)


@fault("mode.gradients.forward-thread-*", cause="scaled")
@alters(with_session)
class ForwardOfAnotherThreadScaled(Backwards):
    """Output gradients of a forward that ran on another thread are divided by the number of threads, two."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        if threading.current_thread() is not threading.main_thread():
            vars(self)["shared"] = True
        return super().forward(mb, args, target)

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        halved = vars(self).get("shared", False)
        return backward(mb, map_leaves(lambda one: one / 2, output_grads) if halved else output_grads)
