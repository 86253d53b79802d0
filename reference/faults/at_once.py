"""Faults of two threads: what an action keeps for the whole process while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from gradconform.target.functions import FunctionsSession

from .alterations import Grads, Passed, alters, backwards, input_passes, with_session
from .registry import fault


class _Process:
    """What the whole process keeps of the current action."""

    session: Any = None
    inputs: Any = ()
    stored: tuple[tuple[nn.Parameter, Tensor | None], ...] = ()


@fault("accumulate.at_once.*", raises=True)
@alters(with_session)
class OutputsOfTheCurrentSession(FunctionsSession):
    """A forward stores its outputs in the session that the process calls the current one."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        _Process.session = self
        outputs = super().forward(mb, args, target)
        held = self._forwards.pop(mb)
        _Process.session._forwards[mb] = held
        return outputs

    def close(self) -> None:
        _Process.session = None
        super().close()


@fault("accumulate.at_once.*", cause="stages_at_once")
@alters(backwards)
def gradients_of_the_current_inputs(
    run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]
) -> Grads:
    """Gradients are returned for the inputs that the process calls the current ones."""
    _Process.inputs = inputs
    found = run(outputs, grads, inputs)
    current, _Process.inputs = _Process.inputs, ()
    return found if current is inputs else (None,) * len(found)


@fault("accumulate.at_once.split", "accumulate.at_once.mixed", cause="cleared")
@alters(input_passes)
def gradients_set_aside_in_the_process(
    run: Callable[[], Passed], outputs: list[Any], parameters: list[nn.Parameter]
) -> Passed:
    """I sets the parameters' gradients aside for the whole process, and puts back what was set aside last."""
    del outputs
    _Process.stored = tuple((one, one.grad) for one in parameters)
    for one in parameters:
        one.grad = None
    found = run()
    for one, grad in _Process.stored:
        one.grad = grad
    return found
