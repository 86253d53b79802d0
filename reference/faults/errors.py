"""Faults of errors and misuse: the state after an error, and mistakes that raise no error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from gradconform.target.functions import SPLIT, FunctionsSession
from gradconform.target.resolve import Target

from .alterations import (
    RIGHT,
    Backwards,
    Context,
    Forgiving,
    Functions,
    Grads,
    Passed,
    Weights,
    alters,
    backwards,
    flat,
    input_passes,
    per_session,
    replaces,
    target,
    weight_passes,
    with_session,
)
from .registry import fault


@fault("grad_tuple.wrong.shape-full", "grad_tuple.wrong.broadcast-full", "grad_tuple.wrong.number-full")
@replaces("full")
def partial_update_before_raising(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """B runs one output after the other, and raises only at the first that does not match."""
    try:
        return RIGHT.full(outputs, grads, inputs)
    except ValueError:
        listed, given = flat(outputs, grads)
        fitting = [
            (output, grad)
            for output, grad in zip(listed, given, strict=False)
            if isinstance(grad, Tensor) and grad.shape == output.shape
        ]
        RIGHT.full([output for output, _ in fitting], [grad for _, grad in fitting], inputs)
        raise


@fault("grad_tuple.wrong.*-split", "misuse.next_microbatch.split", cause="never_accumulated")
@alters(input_passes)
def parameters_left_frozen_by_an_error(run: Callable[[], Passed], _: Any, parameters: list[nn.Parameter]) -> Passed:
    """I freezes the parameters while it runs, and leaves them frozen if it raises."""
    try:
        return run()
    except ValueError:
        for parameter in parameters:
            parameter.requires_grad = False
        raise


@fault("grad_tuple.wrong.*", "grad_tuple.too_long.*")
@alters(backwards)
def errors_swallowed(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """A wrong gradient tuple is logged, and None is returned for every input."""
    with contextlib.suppress(ValueError):
        return run(outputs, grads, inputs)
    return (None,) * len(inputs)


def _poisoned() -> Functions:
    """Return functions whose next accumulation after an error does nothing."""
    failed: list[bool] = []

    def watched(function: Any, *args: Any) -> Any:
        try:
            return function(*args)
        except (ValueError, RuntimeError):
            failed.append(True)
            raise

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Any:
        if failed:
            failed.clear()
            return (None,) * len(inputs)
        return watched(RIGHT.full, outputs, grads, inputs)

    def input_pass(*args: Any) -> Any:
        return watched(RIGHT.input_pass, *args)

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        if failed:
            failed.clear()
        else:
            watched(run, parameters, groups)

    return replace(weight_passes(around), full=full, input_pass=input_pass)


@fault("misuse.next_session.*", cause="idle_since_error")
def next_session_poisoned() -> Target:
    """An error leaves a flag in the process, and the next backward that accumulates does nothing."""
    return target(_poisoned())


@fault("misuse.next_microbatch.*", cause={"kind": "missing", "microbatches": [2]})
def next_microbatch_poisoned() -> Target:
    """An error leaves a flag in the session, and the next backward that accumulates does nothing."""
    return per_session(lambda _: _poisoned())


@fault("misuse.next_microbatch.split", cause={"kind": "idle_since_error", "action": "I1!"})
@alters(with_session)
class ContextsClearedByAnError(Forgiving):
    """If an I raises, the contexts of all micro-batches are cleared, and their W do nothing."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        try:
            return super().backward_input(mb, output_grads)
        except ValueError:
            self._contexts.clear()
            self._forwards.clear()
            raise


@fault("misuse.weight_twice.*", cause="counted_twice")
def contexts_can_be_used_again() -> Target:
    """A second W of a micro-batch adds its gradients again."""
    return target(
        weight_passes(lambda run, parameters, groups: run(parameters, [dict(group) for group in groups], retain=True))
    )


@fault("misuse.weight_before_input.mlp", cause={"kind": "weight_too_early", "action": "W0!"})
@alters(partial(with_session, weight_before_input=True))
class EarlyWeightPassUsesUpItsTurn(FunctionsSession):
    """A W before its I does nothing, and counts as done."""

    done: frozenset[int] = frozenset()

    def backward_weight(self, mb: int) -> Grads | None:
        early = mb not in self._contexts
        if early or mb in self.done:
            self.done |= {mb}
            return None
        return super().backward_weight(mb)


@fault(
    "misuse.weight_before_input.other",
    "misuse.weight_before_input.mlp",
    cause={"kind": "weight_too_early", "action": "W0!"},
)
@alters(partial(with_session, weight_before_input=True))
class EarlyWeightPassTakesAnything(FunctionsSession):
    """A W without a context uses any deferred one; if there is none, the next W does nothing."""

    owed: int = 0

    def backward_weight(self, mb: int) -> Grads | None:
        if self.owed:
            self.owed -= 1
            self._contexts.pop(mb, None)
            return None
        if mb in self._contexts:
            return super().backward_weight(mb)
        if self._contexts:
            return super().backward_weight(next(iter(self._contexts)))
        self.owed += 1
        return None


@fault("misuse.forgotten_weight.*", cause="forgotten")
def forgotten_weight_pass_left_in_a_queue() -> Target:
    """One queue of the process holds deferred work; work without its W is done by the next W."""
    queue: list[Context] = []

    def input_pass(*args: Any) -> Passed:
        found, context = RIGHT.input_pass(*args)
        queue.append(context)
        return found, [{"ticket": len(queue)}]

    def weight_pass(weights: Weights, groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        taken = queue.pop(0) if queue and any("ticket" in group for group in groups) else groups
        return RIGHT.weight_pass(weights, taken, retain_graph)

    return target(Functions(input_pass=input_pass, weight_pass=weight_pass), param_groups=False)


class _Noting(Backwards):
    """A session that notes the micro-batches whose backward raised."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        try:
            return backward(mb, output_grads)
        except BaseException:
            vars(self).setdefault("noted", set()).add(mb)
            raise

    def accumulated(self, mb: int, run: Callable[[], Any], factor: float) -> Any:
        """Run B or W; what a noted micro-batch adds is multiplied by a factor."""
        noted = mb in vars(self).get("noted", ())
        before = [None if one.grad is None else one.grad.clone() for one in self._stage.parameters()]
        found = run()
        for one, held in zip(self._stage.parameters(), before, strict=True) if noted else ():
            if one.grad is not None:
                one.grad = one.grad * factor if held is None else held + (one.grad - held) * factor
        return found


@fault("errors.retry.*", cause="missing")
@alters(with_session)
class MicroBatchWithAnErrorIsDone(_Noting):
    """A micro-batch whose backward raised counts as done: run again, it adds zeros."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        found: Grads = self.accumulated(mb, lambda: _Noting.backward(self, mb, output_grads), 0.0)
        return found

    def backward_weight(self, mb: int) -> Grads | None:
        found: Grads | None = self.accumulated(mb, lambda: _Noting.backward_weight(self, mb), 0.0)
        return found


@fault("errors.retry.*", cause="counted_twice")
@alters(with_session)
class MicroBatchWithAnErrorRunsTwice(_Noting):
    """A micro-batch whose backward raised is put on a list to run again, and the caller runs it again as well."""

    def backward(self, mb: int, output_grads: Any) -> Grads:
        found: Grads = self.accumulated(mb, lambda: _Noting.backward(self, mb, output_grads), 2.0)
        return found

    def backward_weight(self, mb: int) -> Grads | None:
        found: Grads | None = self.accumulated(mb, lambda: _Noting.backward_weight(self, mb), 2.0)
        return found


@fault("errors.retry.*-split", cause="missing")
@alters(with_session)
class ContextQueuedBeforeTheError(FunctionsSession):
    """I queues an empty context before it runs, and W takes the oldest one of its micro-batch."""

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        queue = vars(self).setdefault("queues", {}).setdefault(mb, [])
        queue.append([])
        found = super().backward_input(mb, output_grads)
        queue[-1] = self._contexts[mb]
        return found

    def backward_weight(self, mb: int) -> Grads | None:
        queue = vars(self).get("queues", {}).get(mb)
        if queue:
            self._contexts[mb] = queue[0] if self._spec.repeats_weight else queue.pop(0)
        return super().backward_weight(mb)


class _Kept(FunctionsSession):
    """A session that runs W with a copy of its context, so that it can run again."""

    def weigh(self, context: Any) -> Grads | None:
        """Run W with a copy of a context, and keep its graph."""
        copied = [dict(group) for group in context]
        found = self._call(SPLIT[1], ("weights", ""), iter(self._parameters.values()), copied, retain_graph=True)
        return tuple(found) if isinstance(found, (tuple, list)) else None


@fault("misuse.weight_twice.retained*", cause="counted_twice")
@alters(with_session)
class RetainedOnceIsRetainedForever(_Kept):
    """After a W that retains its graph, the contexts of all later ones can be used again."""

    def backward_weight(self, mb: int) -> Grads | None:
        vars(self)["retains"] = vars(self).get("retains") or mb in self._spec.retained
        return self.weigh(self._contexts[mb]) if vars(self)["retains"] else super().backward_weight(mb)


@fault("misuse.weight_twice.retained*", cause="counted_twice")
@alters(with_session)
class RetainedContextUsedInPlaceOfAUsedOne(_Kept):
    """A W without a context takes the one that an earlier W retained."""

    def backward_weight(self, mb: int) -> Grads | None:
        if mb in self._spec.retained:
            vars(self)["retained"] = self._contexts[mb]
            return self.weigh(self._contexts[mb])
        done = vars(self).setdefault("done", set())
        if mb in done and "retained" in vars(self):
            return self.weigh(vars(self)["retained"])
        done.add(mb)
        return super().backward_weight(mb)


@fault("misuse.weight_twice.retained*", cause="cleared")
@alters(with_session)
class RetainedGradientsCleared(_Kept):
    """A second W, while a retained graph exists, clears what the first one added."""

    def backward_weight(self, mb: int) -> Grads | None:
        done = vars(self).setdefault("done", set())
        if mb in done and self._spec.retained:
            for parameter in self._stage.parameters():
                parameter.grad = None
            return None
        done.add(mb)
        return self.weigh(self._contexts[mb]) if mb in self._spec.retained else super().backward_weight(mb)
