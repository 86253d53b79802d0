"""Faults that depend on an order: of addresses, of sets, or of actions of several stages."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target

from .alterations import Backwards, Grads, Graph, alters, param_grads, target, with_session
from .registry import fault

#: The schedules that have I and W.
_SPLIT = (
    "schedule.gradients.dual-pipe-v-*",
    "schedule.gradients.interleaved-zero-bubble-*",
    "schedule.gradients.zbv-zero-bubble-*",
)


@fault(*_SPLIT, cause="dropped_where_another_waits")
def weight_pass_dropped_while_another_waits() -> Target:
    """A W is dropped if another W, of any stage, is pending."""
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


@fault(*_SPLIT, cause=("contexts_swapped", "done_for_other_stage"))
def weight_passes_of_two_stages_swapped() -> Target:
    """W does the newest pending work of any stage; at the end all work is done, and every sum is right."""
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
    "schedule.gradients.*",
    "schedule.alone.*",
    "schedule.chain.two-tensors",
    cause={"kind": "contexts_swapped_or_late", "microbatches": [0], "others": [1]},
)
@alters(with_session)
class GradientOfTheMicroBatchBeforeHandedOver(Backwards):
    """B and I return the gradients of the previous micro-batch, if there is one."""

    before: Grads | None = None

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        late, self.before = self.before, backward(mb, output_grads)
        return self.before if late is None else late


@fault(*_SPLIT, cause="returned_buffer_reused")
def returned_buffer_shared_by_stages() -> Target:
    """Returned gradients of one shape share one buffer of the process, over all stages."""
    buffers: dict[torch.Size, Tensor] = {}

    def stored(grad: Tensor | None) -> Tensor | None:
        if grad is None:
            return None
        if grad.shape not in buffers:
            buffers[grad.shape] = grad.clone()
        return buffers[grad.shape].copy_(grad)

    class Session(Backwards):
        def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
            return tuple(map(stored, backward(mb, output_grads)))

        def close(self) -> None:
            buffers.clear()
            super().close()

    return with_session(Session)


# Addresses differ from process to process, and a test must not: these draw in their place, from a seed.


@fault("repeat.graph_builds.*", cause="counted_twice")
def wrong_in_one_of_five_graph_builds() -> Target:
    """In one of five graph builds, a parameter is counted twice."""
    drawn = random.Random(5)  # noqa: S311 (a repeatable stand-in for addresses)

    def edit(_: nn.Parameter, added: Tensor, __: Graph) -> Tensor:
        return added * (2.0 if drawn.random() < 0.2 else 1.0)

    return target(param_grads(edit))


@fault("repeat.bit_equal.*")
def sums_in_the_order_of_a_set() -> Target:
    """The last bit of a gradient depends on the order in which its parts were added."""
    drawn = random.Random(5)  # noqa: S311 (a repeatable stand-in for addresses)

    def edit(_: nn.Parameter, added: Tensor, __: Graph) -> Tensor:
        return added * (1.0 + torch.finfo(added.dtype).eps) if drawn.random() < 0.5 else added

    return target(param_grads(edit))


@fault(
    "repeat.graph_builds.tied-adjacent",
    "repeat.graph_builds.looped-block",
    "repeat.graph_builds.tied-apart",
    cause={"kind": "scaled", "factors": [0.5]},
)
def tied_weight_wrong_in_some_graph_builds() -> Target:
    """In one of five graphs a tied weight is halved, as if nodes were visited in order of their addresses."""
    drawn = random.Random(7)  # noqa: S311 (a repeatable stand-in for addresses)

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        return added * (0.5 if len(graph.users_of(parameter)) > 1 and drawn.random() < 0.2 else 1.0)

    return target(param_grads(edit))
