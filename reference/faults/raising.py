"""Faults of micro-batches whose backward raises: how the error is reported, and its effect on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target

from .alterations import Backwards, Context, Grads, backwards, target, weight_passes, with_session
from .registry import fault


@fault("errors.surface.*")
def raised_in_a_backward_and_swallowed() -> Target:
    """An error of a stage's backward is logged, and None is returned for every input."""

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        try:
            return run(outputs, grads, inputs)
        except RuntimeError as error:
            if "told to raise" not in str(error):
                raise
            return (None,) * len(inputs)

    def weighing(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        if groups:
            run(parameters, groups)

    return target(weight_passes(weighing, backwards(around)))


def _told_otherwise(tell: Callable[[RuntimeError], Exception]) -> Target:
    """Return a target that replaces an error of a stage's backward by another one, without a cause."""

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        try:
            return run(outputs, grads, inputs)
        except RuntimeError as error:
            if "told to raise" not in str(error):
                raise
            raise tell(error) from None

    return target(backwards(around))


@fault("errors.surface.*")
def raised_in_a_backward_and_replaced() -> Target:
    """An error of a stage's backward is replaced by an exception without its text."""
    return _told_otherwise(lambda _: ValueError("the backward of a stage failed"))


@fault("errors.surface.*")
def raised_in_a_backward_and_told_as_text() -> Target:
    """An error of a stage's backward becomes the text of another exception, without its type and traceback."""
    return _told_otherwise(lambda error: RuntimeError(f"the backward of a stage failed: {error}"))


def _after_an_error(act: Callable[[FunctionsSession], object]) -> type[FunctionsSession]:
    """Return a session that calls ``act`` if the stage raises in its backward."""

    class Session(Backwards):
        def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
            try:
                return backward(mb, output_grads)
            except RuntimeError as error:
                if "told to raise" in str(error):
                    act(self)
                raise

    return Session


@fault("errors.left.*")
def gradients_cleared_by_an_error() -> Target:
    """An error of a stage's backward clears all gradients."""
    return with_session(_after_an_error(lambda session: session._stage.zero_grad()))


@fault("errors.next.*", cause="action_raised", raises=True)
def forwards_dropped_by_an_error() -> Target:
    """An error of a stage's backward drops the pending forwards of other micro-batches."""
    return with_session(_after_an_error(lambda session: session.close()))


@fault("errors.next.*", cause="idle_since_error")
def next_micro_batch_left_out_after_an_error() -> Target:
    """After an error of a stage's backward, the next backward is skipped."""

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        if failed:
            failed.clear()
            return (None,) * len(inputs)
        try:
            return run(outputs, grads, inputs)
        except RuntimeError as error:
            failed.extend(["told"] * ("told to raise" in str(error)))
            raise

    failed: list[str] = []
    return target(backwards(around))
