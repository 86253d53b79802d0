"""Faults that show once several stages of one process are driven in the order of a pipeline schedule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradconform.functions import FunctionsSession
from gradconform.targets import Target

from .alterations import Grads, with_session
from .registry import fault

#: The schedules that have I and W.
_SPLIT = (
    "schedule.gradients.dual-pipe-v-*",
    "schedule.gradients.interleaved-zero-bubble-*",
    "schedule.gradients.zbv-zero-bubble-*",
)


@fault(*_SPLIT, cause="a W is dropped where another one waits")
def weight_pass_dropped_while_another_waits() -> Target:
    """A W is dropped where another one, of whatever stage, waits as well."""
    waiting: set[tuple[int, int]] = set()

    class Session(FunctionsSession):
        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            waiting.add((id(self), mb))
            return super().backward_input(mb, output_grads)

        def backward_weight(self, mb: int) -> Grads | None:
            alone = len(waiting) < 2
            waiting.discard((id(self), mb))
            return super().backward_weight(mb) if alone else None

        def close(self) -> None:
            waiting.clear()
            super().close()

    return with_session(Session)


@fault(*_SPLIT, cause="contexts are swapped|the work of stage \\d+ was done in its place")
def weight_passes_of_two_stages_swapped() -> Target:
    """W does the newest work of the process, of whatever stage; at the end all is done, and every sum is right."""
    stack: list[tuple[Any, int]] = []

    class Session(FunctionsSession):
        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            stack.append((super().backward_weight, mb))
            return super().backward_input(mb, output_grads)

        def backward_weight(self, mb: int) -> Grads | None:
            if stack:
                run, newest = stack.pop()
                run(newest)
            else:
                super().backward_weight(mb)
            return None

        def close(self) -> None:
            stack.clear()
            super().close()

    return with_session(Session)


@fault(
    "schedule.gradients.*", "schedule.chain.two-tensors", cause="micro-batch 0 in place of micro-batch 1: returned late"
)
def gradient_of_the_micro_batch_before_handed_over() -> Target:
    """B and I return what they returned for the micro-batch before, where there is one."""

    class Session(FunctionsSession):
        before: Grads | None = None

        def _late(self, found: Grads) -> Grads:
            late, self.before = self.before, found
            return found if late is None else late

        def backward(self, mb: int, output_grads: Any) -> Grads:
            return self._late(super().backward(mb, output_grads))

        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            return self._late(super().backward_input(mb, output_grads))

    return with_session(Session)


@fault(*_SPLIT, cause="a returned buffer was written again before it was read")
def returned_buffer_shared_by_stages() -> Target:
    """Returned gradients of one shape lie in one buffer of the process, whatever stage returns them."""
    buffers: dict[torch.Size, Tensor] = {}

    def stored(grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        if grad.shape not in buffers:
            buffers[grad.shape] = grad.clone()
        return buffers[grad.shape].copy_(grad)

    class Session(FunctionsSession):
        def backward(self, mb: int, output_grads: Any) -> Grads:
            return tuple(map(stored, super().backward(mb, output_grads)))

        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            return tuple(map(stored, super().backward_input(mb, output_grads)))

        def close(self) -> None:
            buffers.clear()
            super().close()

    return with_session(Session)
