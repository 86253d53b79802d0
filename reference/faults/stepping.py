"""Faults of time: state kept between steps, or between sessions that share a module or parameters."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.devices.tensor_facts import version_of
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target

from .alterations import (
    Backwards,
    Context,
    Forgiving,
    Functions,
    Grads,
    Graph,
    accumulating,
    alters,
    per_session,
    target,
    with_session,
)
from .registry import fault


@fault(
    "steps.params.step-*",
    "steps.params.replace-*",
    "steps.params.step-layer-norm-*",
    cause="parameters_old",
    takes="steps=stepped",
)
@alters(with_session)
class WeightsOfTheFirstForward(FunctionsSession):
    """Parameter values of the first forward are cached and used in all later ones, like weights cast once."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        kept: dict[nn.Parameter, Tensor] = vars(self).setdefault("kept", {})
        parameters = list(self._stage.parameters())
        now = [parameter.data for parameter in parameters]
        try:
            for parameter in parameters:
                parameter.data = kept.setdefault(parameter, parameter.detach().clone()).clone()
            return super().forward(mb, args, target)
        finally:
            for parameter, data in zip(parameters, now, strict=True):
                parameter.data = data


@fault("steps.params.rebind-*")
@alters(with_session)
class ParametersOfTheFirstForward(FunctionsSession):
    """Gradients go to the parameters that the stage had in its first forward."""

    def param_grads(self) -> dict[str, Tensor | None]:
        kept: dict[str, nn.Parameter] = vars(self).setdefault("kept", dict(self._stage.named_parameters()))
        return {name: parameter.grad for name, parameter in kept.items()}


@fault("steps.params.*-split", cause="number_used_before", raises=True)
@alters(with_session)
class ContextsOfTheFirstStep(FunctionsSession):
    """A weight context is never replaced: W of a later step uses the first step's context of the same number."""

    def backward_weight(self, mb: int) -> Grads | None:
        kept: dict[int, Context] = vars(self).setdefault("kept", {})
        if mb in self._contexts:
            first = kept.setdefault(mb, [dict(group) for group in self._contexts[mb]])
            self._contexts[mb] = [dict(group) for group in first]
        return super().backward_weight(mb)


def _added_by(add: Callable[[Tensor, Tensor], object]) -> Functions:
    """Return functions that add each new gradient to the earlier ``.grad`` by ``add(held, grad)``."""

    @contextlib.contextmanager
    def adding(parameters: Sequence[nn.Parameter], _: Graph) -> Iterator[None]:
        held = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        strided = [(parameter, grad) for parameter, grad in held if grad.layout == torch.strided]
        for parameter, _grad in strided:
            parameter.grad = None
        yield
        for parameter, grad in strided:
            if parameter.grad is not None:
                add(grad, parameter.grad)
            parameter.grad = grad

    return accumulating(adding)


@fault(
    "steps.grads.strides-*",
    "steps.grads.restride-*",
    "space.full.zeroed-*",
    "space.split.zeroed-1",
    cause="added_as_flat",
    takes="steps=zeroed",
)
def gradients_added_as_flat_memory() -> Target:
    """Gradients are added as flat memory, in memory order."""

    def flat(held: Tensor, grad: Tensor) -> Tensor:
        if grad.layout == torch.strided and held.stride() == grad.stride():
            return held.add_(grad)
        return held.as_strided((held.numel(),), (1,)).add_(grad.to_dense().reshape(-1))

    return target(_added_by(flat))


@fault("steps.grads.bucket-*", cause="added_at_start", shows_by="memory")
def gradients_added_at_the_start_of_their_storage() -> Target:
    """Gradients are added at the start of .grad's storage, which the parameters of a bucket share."""
    return target(_added_by(lambda held, grad: held.as_strided(held.shape, held.stride(), 0).add_(grad)))


@fault("steps.frozen.thawed-*", cause="thawed")
def trained_parameters_looked_up_once() -> Target:
    """The trained parameters are determined on opening a session; a parameter that is thawed later gets no gradient."""

    class Session(FunctionsSession):
        def __init__(self, functions: Any, stage: nn.Module, spec: StageSpec) -> None:
            super().__init__(functions, stage, spec)
            self.fixed = [parameter for parameter in stage.parameters() if not parameter.requires_grad]

        def param_grads(self) -> dict[str, Tensor | None]:
            for parameter in self.fixed:
                parameter.grad = None
            return super().param_grads()

    return with_session(Session)


@fault("steps.frozen.between-*", cause="frozen", takes="steps=frozen-later")
def gradients_of_frozen_parameters_cleared() -> Target:
    """The .grad of a frozen parameter is cleared as if it were garbage."""

    class Session(FunctionsSession):
        def param_grads(self) -> dict[str, Tensor | None]:
            for parameter in self._stage.parameters():
                if not parameter.requires_grad:
                    parameter.grad = None
            return super().param_grads()

    return with_session(Session)


@fault("steps.frozen.in-flight-*", "steps.frozen.before-weight")
@alters(with_session)
class FrozenParametersStillTrained(Backwards):
    """Parameters that were trained in the forward get a gradient even if they were frozen since."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        trained: dict[int, list[nn.Parameter]] = vars(self).setdefault("trained", {})
        trained[mb] = [parameter for parameter in self._stage.parameters() if parameter.requires_grad]
        return super().forward(mb, args, target)

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        with self.thawed(mb):
            return backward(mb, output_grads)

    def backward_weight(self, mb: int) -> Grads | None:
        with self.thawed(mb):
            return super().backward_weight(mb)

    @contextlib.contextmanager
    def thawed(self, mb: int) -> Iterator[None]:
        frozen = [one for one in vars(self).get("trained", {}).get(mb, ()) if not one.requires_grad]
        for parameter in frozen:
            parameter.requires_grad = True
        yield
        for parameter in frozen:
            parameter.requires_grad = False


@fault("steps.in_flight.*", cause="parameters_new")
@alters(with_session)
class ForwardRunAgainWithNewParameters(Backwards):
    """If parameters have changed since the forward, it runs again before B or I."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        versions: dict[int, list[int]] = vars(self).setdefault("versions", {})
        versions[mb] = [version_of(parameter) for parameter in self._stage.parameters()]
        return super().forward(mb, args, target)

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        now = [version_of(parameter) for parameter in self._stage.parameters()]
        if vars(self)["versions"].get(mb) != now and self._spec.loss_fn is None:
            args, _ = self._forwards[mb]
            self._forwards[mb] = args, self._stage(*args)
        return backward(mb, output_grads)


@fault("steps.one_module.*", cause="other_session_forward", raises=True, takes="beside=one-module")
@alters(with_session)
class ContextsKeptOnTheModule(Forgiving):
    """Pending work is stored on the module, by micro-batch number alone."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        self._forwards, self._contexts = vars(self._stage).setdefault("_waiting", ({}, {}))
        return super().forward(mb, args, target)


@fault("steps.opened_late.one-module-*", cause="session_opened", raises=True)
@alters(with_session)
class OpeningClearsTheModule(Forgiving):
    """Opening a session drops the pending work of its module."""

    def __init__(self, functions: Any, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(functions, stage, spec)
        for waiting in vars(stage).pop("_opened", ()):
            waiting.clear()
        vars(stage)["_opened"] = (self._forwards, self._contexts)


@fault("steps.opened_late.*", cause="session_opened", raises=True)
def opening_clears_the_process() -> Target:
    """Opening a session drops the pending work of all others."""
    opened: list[Forgiving] = []

    class Session(Forgiving):
        def __init__(self, functions: Any, stage: nn.Module, spec: StageSpec) -> None:
            super().__init__(functions, stage, spec)
            for other in opened:
                other.close()
            opened[:] = [self]

    return with_session(Session)


@fault("steps.tied.*", "steps.one_module.*", cause="other_sessions_missing")
@alters(per_session)
def sums_of_each_session_assigned(_: StageSpec) -> Functions:
    """Every session sums its own micro-batches, and overwrites .grad with the sum."""
    sums: dict[nn.Parameter, Tensor] = {}

    @contextlib.contextmanager
    def adding(parameters: Sequence[nn.Parameter], _: Graph) -> Iterator[None]:
        before = {one: one.grad for one in parameters if one.grad is None or one.grad.layout == torch.strided}
        for parameter, grad in before.items():
            if grad is None:
                sums.pop(parameter, None)
            else:
                sums.setdefault(parameter, grad.clone())
            parameter.grad = None
        yield
        for parameter, held in before.items():
            grad = parameter.grad
            if grad is not None:
                sums[parameter] = sums[parameter] + grad if parameter in sums else grad.clone()
                parameter.grad = sums[parameter].clone() if held is None else held.copy_(sums[parameter])
            else:
                parameter.grad = held

    return accumulating(adding)


@fault("lifetime.collected.*", cause="collected")
def contexts_held_weakly_in_a_cycle() -> Target:
    """A weight context has only a weak reference, and lives by a cycle that contains it."""

    class Held:
        def __init__(self, context: Context) -> None:
            self.context, self.itself = context, self

    class Session(FunctionsSession):
        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            found = super().backward_input(mb, output_grads)
            self._contexts[mb] = weakref.ref(Held(self._contexts[mb]))
            return found

        def backward_weight(self, mb: int) -> Grads | None:
            held = self._contexts.get(mb)
            if isinstance(held, weakref.ref):
                alive = held()
                if alive is None:
                    return None
                self._contexts[mb] = alive.context
            return super().backward_weight(mb)

    return with_session(Session)
