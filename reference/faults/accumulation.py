"""Faults of accumulation: how a micro-batch's gradients are added to earlier ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.target.resolve import Target

from .alterations import Functions, Graph, accumulating, alters, each_input_grad, param_grads, per_session, target
from .registry import fault


@fault(
    "accumulate.iterations.*-3",
    "accumulate.prior.*",
    cause=("overwritten", {"kind": "missing", "microbatches": [None]}),
)
@alters(param_grads)
def overwrite(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
    """Each micro-batch's parameter gradients replace the accumulated ones."""
    parameter.grad = None
    return added


@fault("accumulate.iterations.*", "*.gradients.mlp", cause="counted_twice")
def doubled() -> Target:
    """Each micro-batch's parameter gradients are added twice."""
    return target(param_grads(lambda _, added, __: added + added))


@fault(
    "accumulate.iterations.*-3",
    "accumulate.iterations.split-10-deferred",
    cause=({"kind": "missing", "microbatches": [1]}, {"kind": "only", "microbatches": [0]}),
)
def first_microbatch_only() -> Target:
    """If a parameter already has a gradient, nothing is added to it."""
    return target(param_grads(lambda parameter, added, _: added if parameter.grad is None else torch.zeros_like(added)))


@fault("accumulate.iterations.*-3", cause={"kind": "scaled", "factors": [0.5]})
@alters(param_grads)
def averaged_with_what_stands(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
    """Parameter gradients are a running mean instead of a sum."""
    if parameter.grad is None:
        return added
    parameter.grad = parameter.grad * 0.5
    return added * 0.5


@fault(
    "accumulate.iterations.*-10",
    "accumulate.iterations.split-10-deferred",
    cause={"kind": "counted_twice", "microbatches": [5]},
    takes="count=past-64-mb three-mb",
)
@alters(per_session)
def wrong_after_the_fifth_call(_: StageSpec) -> Functions:
    """From the sixth micro-batch of a session on, parameter gradients are added twice."""
    calls: Counter[int] = Counter()

    def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
        calls[id(parameter)] += 1
        return added if calls[id(parameter)] <= 5 else 2.0 * added

    return param_grads(edit)


@fault("accumulate.prior.*", cause={"kind": "overwritten", "microbatches": [0]}, takes="found=prior")
@alters(param_grads)
def first_call_assigns(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
    """The first micro-batch of a module overwrites an existing gradient; the others add to it."""
    if not vars(parameter).get("met"):
        vars(parameter)["met"] = True
        parameter.grad = None
    return added


@fault("accumulate.steps.*-zero-none", "accumulate.steps.*-zero-fill", cause="added")
@alters(per_session)
def written_behind_zero_grad(_: StageSpec) -> Functions:
    """The implementation stores the sum and copies it to .grad, so that zero_grad clears only the copy."""
    sums: dict[int, Tensor] = {}

    def edit(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
        before = sums.get(id(parameter), parameter.grad)
        sums[id(parameter)] = added.clone() if before is None else before + added
        parameter.grad = None
        return sums[id(parameter)]

    return param_grads(edit)


@fault(
    "accumulate.iterations.*-3",
    "accumulate.stage.*",
    cause={"kind": "divided", "names": ["the number of micro-batches"]},
)
def divided_by_microbatches() -> Target:
    """Parameter gradients are divided by the number of micro-batches, although the loss is not."""
    return per_session(lambda spec: param_grads(lambda _, added, __: added / spec.n_microbatches))


@fault("accumulate.in_place.*")
@alters(param_grads)
def new_tensor_per_microbatch(parameter: nn.Parameter, added: Tensor, _: Graph) -> Tensor:
    """The sum moves to a new tensor with every micro-batch, and leaves the bucket that .grad was a view of."""
    if parameter.grad is not None:
        parameter.grad = parameter.grad.clone()
    return added


@fault("accumulate.reused_input.*", cause="added", takes="found=same-arguments")
@alters(each_input_grad)
def running_sum_of_an_input(value: Any, grad: Tensor) -> Tensor | None:
    """An input's gradient is accumulated in its .grad, and the sum is returned."""
    if value.is_leaf:
        value.grad = grad if value.grad is None else value.grad + grad
    return value.grad if value.is_leaf else grad


@fault("accumulate.iterations.*-3", cause="shared_with_buffer")
@alters(per_session)
def static_buffer_stored_as_gradient(_: StageSpec) -> Functions:
    """Each gradient is computed in the parameter's static buffer, and the first one is stored without a copy."""
    buffers: dict[int, Tensor] = {}

    @contextmanager
    def inside(parameters: list[nn.Parameter], _: Graph) -> Iterator[None]:
        before = [(one, one.grad) for one in parameters]
        for one, _held in before:
            one.grad = None
        yield
        for one, held in before:
            added, one.grad = one.grad, held
            if added is None or added.layout is not torch.strided:
                one.grad = held if added is None else added if held is None else held + added
                continue
            buffer = buffers.setdefault(id(one), added)
            if buffer is not added:
                buffer.copy_(added)
            one.grad = buffer if held is None else held.add_(buffer)

    return accumulating(inside)
