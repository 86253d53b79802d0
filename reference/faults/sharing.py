"""Faults of sharing: one parameter, input or context at more than one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target

from .alterations import (
    RIGHT,
    Backwards,
    Context,
    Forgiving,
    Functions,
    Grads,
    Graph,
    Passed,
    alters,
    each_input_grad,
    edited,
    input_grads,
    param_grads,
    per_session,
    replaces,
    stored_as,
    target,
    weight_passes,
    with_session,
)
from .registry import fault


@fault(
    "*.gradients.tied-parallel",
    "*.gradients.tied-apart",
    "*.loss.looped-block",
    "split.gradients.rnn",
    "accumulate.prior.tied",
    cause="counted_twice",
    takes="parameters=tied",
)
def tied_weight_doubled() -> Target:
    """A parameter that is used twice is counted twice."""
    return target(param_grads(lambda parameter, added, graph: added * (1 + (len(graph.users_of(parameter)) > 1))))


@fault(
    "*.gradients.tied-parallel",
    "*.gradients.tied-transposed",
    "*.gradients.tied-adjacent",
    cause={"kind": "scaled", "factors": [0.5]},
)
def tied_weight_halved() -> Target:
    """The gradient of a parameter is averaged over its uses."""
    return target(param_grads(lambda parameter, added, graph: added / max(len(graph.users_of(parameter)), 1)))


@fault("*.gradients.tied-apart", "*.gradients.tied-apart-reordered", cause="counted_twice")
def tied_weight_doubled_if_a_layer_lies_between() -> Target:
    """A parameter is counted twice if another layer is between its two uses."""
    return target(param_grads(lambda parameter, added, graph: added * (1 + (graph.apart(parameter) > 2))))


@fault("split.gradients.tied-apart-reordered", cause="counted_twice")
@alters(weight_passes)
def tied_weight_doubled_if_registered_last(
    run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context
) -> None:
    """W counts a parameter twice if it is used twice and registered after another one."""

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        return added * (1 + (parameter is not parameters[0] and graph.apart(parameter) > 2))

    with edited(parameters, Graph.of_context(groups), edit):
        run(parameters, groups)


@fault("*.gradients.duplicate-input", "*.loss.duplicate-input", cause="counted_twice")
@alters(input_grads)
def input_passed_twice_doubled(inputs: Sequence[Any], grads: Grads) -> Grads:
    """A tensor that is passed twice gets the sum of both slots in each slot."""
    count = [sum(other is value for other in inputs) for value in inputs]
    return tuple(grad if grad is None or n < 2 else grad * n for grad, n in zip(grads, count, strict=True))


@fault("*.gradients.duplicate-input", "*.loss.duplicate-input", cause={"kind": "scaled", "factors": [0.5]})
@alters(input_grads)
def input_passed_twice_lost_in_both(inputs: Sequence[Any], grads: Grads) -> Grads:
    """A tensor that is passed twice gets half of its gradient in the first slot and None in the second."""
    seen: set[int] = set()
    found: list[Tensor | None] = []
    for value, grad in zip(inputs, grads, strict=True):
        twice = sum(other is value for other in inputs) > 1 and grad is not None
        found.append(None if id(value) in seen and twice else grad * 0.5 if twice and grad is not None else grad)
        seen.add(id(value))
    return tuple(found)


@fault("full.gradients.parameter-input", "full.loss.parameter-input", cause="argument_detached")
@replaces("full")
def parameter_input_not_accumulated(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """A parameter passed as an argument gets an input gradient, but no parameter gradient."""
    passed = [value for value in inputs if isinstance(value, nn.Parameter)]
    before = [value.grad for value in passed]
    found = RIGHT.full(outputs, grads, inputs)
    for value, grad in zip(passed, before, strict=True):
        value.grad = grad
    return found


@fault("*.gradients.parameter-input", "*.loss.parameter-input", cause="argument_is_parameter")
def parameter_input_without_input_gradient() -> Target:
    """A parameter passed as an argument gets a parameter gradient, but no input gradient."""
    return target(each_input_grad(lambda value, grad: None if isinstance(value, nn.Parameter) else grad))


@fault("accumulate.order.split-deferred", "accumulate.order.split-reversed", cause="contexts_swapped")
@alters(with_session)
class TwoWeightPassesSwapped(FunctionsSession):
    """If two W are deferred, each does the other's work."""

    def backward_weight(self, mb: int) -> Grads | None:
        neighbour = mb ^ 1
        if mb in self._contexts and neighbour in self._contexts:
            contexts = self._contexts
            contexts[mb], contexts[neighbour] = contexts[neighbour], contexts[mb]
        return super().backward_weight(mb)


@fault(
    "accumulate.order.split-reversed",
    "accumulate.order.split-input-reversed",
    "lifetime.dropped.mlp",
    "misuse.forgotten_weight.same-step",
    cause="contexts_swapped",
    takes="order=weights-reversed inputs-reversed",
)
@alters(with_session)
class WeightPassesFirstInFirstOut(FunctionsSession):
    """W uses the oldest context instead of its micro-batch's."""

    def backward_weight(self, mb: int) -> Grads | None:
        return super().backward_weight(next(iter(self._contexts), mb))


@fault(
    "accumulate.order.split-deferred",
    "accumulate.order.split-interleaved",
    "split.gradients.mlp",
    cause="contexts_swapped",
)
@alters(with_session)
class WeightPassesLastInFirstOut(FunctionsSession):
    """W uses the newest context instead of its micro-batch's."""

    def backward_weight(self, mb: int) -> Grads | None:
        return super().backward_weight(next(reversed(self._contexts), mb))


@fault("accumulate.order.*-all-forwards-first", cause={"kind": "other_forward", "microbatches": [2], "others": [0]})
@alters(with_session)
class NewestForwardForEveryBackward(Backwards):
    """B and I start from the newest forward without a backward."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        taken = next(reversed(self._forwards))
        self._forwards[mb], self._forwards[taken] = self._forwards[taken], self._forwards[mb]
        return backward(mb, output_grads)


@fault(
    "accumulate.order.full-reversed",
    "accumulate.order.mixed-weight-last",
    "accumulate.order.split-input-reversed",
    cause={"kind": "other_forward", "microbatches": [0], "others": [2]},
    takes="order=reversed inputs-reversed",
)
@alters(with_session)
class OldestForwardForEveryBackward(Backwards):
    """B and I start from the oldest forward without a backward."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        taken = next(iter(self._forwards))
        self._forwards[mb], self._forwards[taken] = self._forwards[taken], self._forwards[mb]
        return backward(mb, output_grads)


@fault(
    "accumulate.order.split-deferred",
    "accumulate.stage.*",
    "split.gradients.mlp",
    cause="newest_context_kept",
    takes="order=split-in-flight lagging",
)
@alters(per_session)
def newest_context_only(_: StageSpec) -> Functions:
    """A stage keeps one context: an I overwrites the previous micro-batch's, whose W then adds nothing."""
    newest: list[Context] = []

    def input_pass(*args: Any) -> Passed:
        found, context = RIGHT.input_pass(*args)
        newest[:] = [context]
        return found, context

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        if not newest or all(any(group is one for one in newest[0]) for group in groups):
            newest.clear()
            run(parameters, groups)

    return replace(weight_passes(around), input_pass=input_pass)


@fault(
    "accumulate.two_stages.split",
    "accumulate.two_stages.split-crossed",
    cause="kept_by_microbatch",
)
def two_sessions_share_contexts() -> Target:
    """One queue of the process holds all weight contexts by micro-batch number, without their session."""
    shared: dict[int, Any] = {}

    class Session(Forgiving):
        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            self._contexts = shared
            return super().backward_input(mb, output_grads)

        def close(self) -> None:
            shared.clear()
            super().close()

    return with_session(Session)


@fault("schedule.gradients.*zero-bubble-*", cause={"kind": "other_session"})
def weight_passes_of_every_session() -> Target:
    """A W does the pending work of all sessions, like a common queue that is emptied at once."""
    sessions: list[Session] = []

    class Session(Forgiving):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            sessions.append(self)

        def do(self, mb: int) -> Grads | None:
            return super().backward_weight(mb)

        def backward_weight(self, mb: int) -> Grads | None:
            found = self.do(mb)
            for session in sessions:
                for other in [] if session is self else list(session._contexts):
                    session.do(other)
            return found

        def close(self) -> None:
            sessions[:] = [session for session in sessions if session is not self]
            super().close()

    return with_session(Session)


@fault("accumulate.two_stages.full", raises=True, takes="beside=beside one-module")
def two_sessions_share_forwards() -> Target:
    """One dict of the process holds pending outputs by micro-batch number, without their session."""
    shared: dict[int, Any] = {}

    class Session(FunctionsSession):
        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            self._forwards = shared
            return super().forward(mb, args, target)

    return with_session(Session)


@fault("accumulate.iterations.split-10-deferred", cause={"kind": "newest_contexts_kept", "counts": [8]})
@alters(with_session)
class RingOfEightContexts(Forgiving):
    """A ring holds eight contexts: the ninth deferred one overwrites the first."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        found = super().backward_input(mb, output_grads)
        if len(self._contexts) > 8:
            del self._contexts[next(iter(self._contexts))]
        return found


@fault(
    "accumulate.order.mixed",
    "accumulate.order.mixed-weight-last",
    cause=({"kind": "missing", "microbatches": [0]}, {"kind": "missing", "microbatches": [1]}),
    takes="order=mixed",
)
@alters(with_session)
class FullBackwardClearsTheContexts(Forgiving):
    """A B clears the deferred weight contexts, as at the end of a step."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        self._contexts.clear()
        return super().backward(mb, output_grads)


@fault(
    "*.gradients.duplicate-input", "*.gradients.layer-norm", "*.gradients.custom-two-outputs", cause="other_parameter"
)
@alters(stored_as)
def parameters_of_one_shape_swapped(parameters: list[nn.Parameter]) -> None:
    """Gradients are looked up by shape, so that all parameters of one shape get the last one's."""
    last = {parameter.shape: parameter.grad for parameter in parameters if parameter.grad is not None}
    for parameter in parameters:
        held = last.get(parameter.shape)
        if held is not None and parameter.grad is not None and parameter.grad is not held:
            parameter.grad = held.clone()
