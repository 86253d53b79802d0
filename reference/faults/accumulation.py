"""Faults of accumulation: what a micro-batch adds to the gradients that stand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.target.resolve import Target

from .alterations import Functions, Graph, each_input_grad, param_grads, per_session, target
from .registry import fault


@fault(
    "accumulate.iterations.full-3",
    "accumulate.iterations.split-3",
    "accumulate.prior.*",
    cause=("overwritten", {"kind": "missing", "microbatches": [None]}),
)
def overwrite() -> Target:
    """Each micro-batch's parameter gradients replace those that stand."""

    def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
        parameter.grad = None
        return added

    return target(param_grads(edit))


@fault("accumulate.iterations.*", "full.gradients.mlp", "split.gradients.mlp", cause="counted_twice")
def doubled() -> Target:
    """Each micro-batch's parameter gradients are added twice."""
    return target(param_grads(lambda _, added, __: added + added))


@fault(
    "accumulate.iterations.full-3",
    "accumulate.iterations.split-3",
    "accumulate.iterations.split-10-deferred",
    cause=({"kind": "missing", "microbatches": [1]}, {"kind": "only", "microbatches": [0]}),
)
def first_microbatch_only() -> Target:
    """Where a gradient stands already, nothing is added."""
    return target(param_grads(lambda parameter, added, _: added if parameter.grad is None else torch.zeros_like(added)))


@fault("accumulate.iterations.full-3", "accumulate.iterations.split-3", cause={"kind": "scaled", "factors": [0.5]})
def averaged_with_what_stands() -> Target:
    """A running mean takes the place of the sum."""

    def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
        if parameter.grad is None:
            return added
        parameter.grad = parameter.grad * 0.5
        return added * 0.5

    return target(param_grads(edit))


@fault(
    "accumulate.iterations.full-10",
    "accumulate.iterations.split-10",
    "accumulate.iterations.split-10-deferred",
    cause={"kind": "counted_twice", "microbatches": [5]},
)
def wrong_after_the_fifth_call() -> Target:
    """From the sixth micro-batch of a session on, gradients are added twice."""

    def make(_: StageSpec) -> Functions:
        calls: Counter[int] = Counter()

        def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
            calls[id(parameter)] += 1
            return added if calls[id(parameter)] <= 5 else 2.0 * added

        return param_grads(edit)

    return per_session(make)


@fault("accumulate.prior.*", cause={"kind": "overwritten", "microbatches": [0]})
def first_call_assigns() -> Target:
    """The first micro-batch of a session assigns, whatever stands there; the others add."""

    def make(_: StageSpec) -> Functions:
        met: set[int] = set()

        def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
            if id(parameter) not in met:
                met.add(id(parameter))
                parameter.grad = None
            return added

        return param_grads(edit)

    return per_session(make)


@fault("accumulate.steps.*-zero-none", "accumulate.steps.*-zero-fill", cause="added")
def written_behind_zero_grad() -> Target:
    """The sum is kept by the implementation and written to .grad, so that zero_grad clears a copy."""

    def make(_: StageSpec) -> Functions:
        sums: dict[int, Tensor] = {}

        def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
            before = sums.get(id(parameter), parameter.grad)
            sums[id(parameter)] = added.clone() if before is None else before + added
            parameter.grad = None
            return sums[id(parameter)]

        return param_grads(edit)

    return per_session(make)


@fault(
    "accumulate.iterations.full-3",
    "accumulate.iterations.split-3",
    "accumulate.stage.*",
    cause={"kind": "divided", "names": ["the number of micro-batches"]},
)
def divided_by_microbatches() -> Target:
    """Parameter gradients are divided by the number of micro-batches, though the loss is not."""
    return per_session(lambda spec: param_grads(lambda _, added, __: added / spec.n_microbatches))


@fault("accumulate.in_place.*")
def new_tensor_per_microbatch() -> Target:
    """The sum moves to a new tensor with every micro-batch, out of the bucket that .grad was a view of."""

    def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()
        return added

    return target(param_grads(edit))


@fault("accumulate.reused_input.*", cause="added")
def running_sum_of_an_input() -> Target:
    """An input's gradient is accumulated in its .grad, and what stands there is returned."""

    def edit(value: Any, grad: Tensor) -> Tensor | None:
        if value.is_leaf:
            value.grad = grad if value.grad is None else value.grad + grad
        return value.grad if value.is_leaf else grad

    return target(each_input_grad(edit))
