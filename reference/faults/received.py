"""Faults of objects that the caller keeps: tensors with new values, lists in use, graphs that continue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.reference import split as by_uses
from gradconform.reference import walked_twice as split
from gradconform.reference.autograd_with_mistake import Copies
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target
from gradconform.trees import map_leaves, tensors

from .alterations import (
    BY_USES,
    RIGHT,
    Backwards,
    Context,
    Functions,
    Grads,
    Passed,
    Weights,
    alters,
    backwards,
    output_grads,
    per_session,
    target,
    weight_passes,
    with_session,
)
from .registry import fault


def _last_part_of(whole: Tensor, like: Tensor) -> Tensor | None:
    """Return the last part of a tensor that has the shape and values of another; None without one."""
    parts = [whole[-1]] if whole.shape[1:] == like.shape and len(whole) > 1 else []
    if whole.dim() == like.dim():
        parts += [
            whole.narrow(dim, whole.shape[dim] - size, size)
            for dim, size in enumerate(like.shape)
            if size < whole.shape[dim]
            and whole.shape[:dim] + whole.shape[dim + 1 :] == like.shape[:dim] + like.shape[dim + 1 :]
        ]
    return next((part for part in parts if torch.equal(part, like)), None)


@fault("state.receive_buffer.endings", cause="received_over")
def parts_of_output_gradients_not_copied() -> Target:
    """A gradient that waits for W is copied if it starts where an output gradient does; a later part of one is not."""

    def input_pass(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Weights) -> Passed:
        found, groups = BY_USES.input_pass(outputs, grads, inputs, weights)
        wholes = [grad for grad in grads or () if isinstance(grad, Tensor) and grad.dim()]

        def shared(grad: Any) -> Any:
            parts = [_last_part_of(whole, grad) for whole in wholes] if isinstance(grad, Tensor) else []
            return next((part for part in parts if part is not None), grad)

        kept = [
            {**group, "grads": [tuple(map(shared, one)) for one in group["grads"]]} if "grads" in group else group
            for group in groups
        ]
        return found, kept

    return target(replace(BY_USES, input_pass=input_pass))


@fault("space.*.inputs-refilled-*", cause="arguments_copied_once", takes="received=inputs-refilled")
@alters(with_session)
class InputsCopiedOncePerTensor(FunctionsSession):
    """F caches a copy of each argument by its tensor, and does not copy a tensor again after new values."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        copies = vars(self).setdefault("copies", Copies())
        outputs = super().forward(mb, tuple(map(copies.in_graph, args)), target)
        self._forwards[mb] = args, self._forwards[mb][1]
        return outputs


@fault(
    "space.*.gradients-refilled-*",
    cause=("contexts_swapped_or_late", "contexts_swapped", "other_output_grads", "output_grads_copied_once"),
    takes="received=gradients-refilled",
)
@alters(with_session)
class OutputGradientsCopiedOncePerTensor(Backwards):
    """Copies of output gradients are cached by tensor, and a tensor with new values is not copied again."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        copies = vars(self).setdefault("copies", Copies())
        return backward(
            mb, map_leaves(lambda grad: copies.of(grad) if isinstance(grad, Tensor) else grad, output_grads)
        )


@fault("space.*.one-gradient-twice-*", cause="kept_by_output_grad", takes="received=one-gradient-twice")
@alters(output_grads)
def outputs_kept_by_their_gradient(_: list[Any], grads: Any) -> Any:
    """Outputs are stored in a dict by their gradients, so one of two outputs with the same gradient is lost."""
    if not isinstance(grads, list):
        return grads
    last = {id(grad): slot for slot, grad in enumerate(grads)}
    return [
        torch.zeros_like(grad) if isinstance(grad, Tensor) and last[id(grad)] != slot else grad
        for slot, grad in enumerate(grads)
    ]


class _WithoutWeights(FunctionsSession):
    """A session that can run a B or W without its accumulation."""

    def without_weights(self, run: Callable[[], Any], *, taken_back: bool) -> Any:
        before = [None if one.grad is None else one.grad.clone() for one in self._stage.parameters()]
        found = run()
        for parameter, grad in zip(self._stage.parameters(), before, strict=True) if taken_back else ():
            parameter.grad = grad
        return found


@fault(
    "space.*.one-gradient-for-all-*",
    cause=({"kind": "missing", "microbatches": [1]}, "never_accumulated"),
    takes="received=one-gradient-for-all",
)
@alters(with_session)
class MicroBatchToldByItsOutputGradient(_WithoutWeights):
    """A micro-batch is identified by its output gradient: if that tensor is unchanged, its weights get no gradient."""

    def _seen(self, mb: int, output_grads: Any) -> bool:
        kept = vars(self).setdefault("kept", {})
        given = tensors(output_grads)
        key = tuple((id(grad), grad._version) for grad in given)
        holder, _ = kept.setdefault(key, (mb, given)) if given else (mb, given)
        return bool(holder != mb)

    def backward(self, mb: int, output_grads: Any) -> Grads:
        seen = self._seen(mb, output_grads)
        found: Grads = self.without_weights(lambda: FunctionsSession.backward(self, mb, output_grads), taken_back=seen)
        return found

    def backward_input(self, mb: int, output_grads: Any) -> Grads:
        vars(self).setdefault("seen", {})[mb] = self._seen(mb, output_grads)
        return super().backward_input(mb, output_grads)

    def backward_weight(self, mb: int) -> Grads | None:
        seen = vars(self)["seen"].pop(mb)
        found: Grads | None = self.without_weights(lambda: FunctionsSession.backward_weight(self, mb), taken_back=seen)
        return found


@fault("space.full.tracked-gradients-*", cause="history", takes="tracking=tracked-gradients")
@alters(lambda full: Functions(full=full))
def graph_made_of_the_backward(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """If an output gradient requires a gradient, B builds a graph of itself, so that .grad has a history."""
    if not any(grad.requires_grad for grad in tensors(grads)):
        return RIGHT.full(outputs, grads, inputs)
    roots, given = split.match(outputs, grads)
    wanted = [value for value in inputs if isinstance(value, Tensor) and value.requires_grad]
    before = [value.grad for value in wanted]
    for value in wanted:
        value.grad = None
    if roots:
        torch.autograd.backward(roots, given, create_graph=True)  # type: ignore[arg-type] # torch takes both kinds in one list
    found = {id(value): None if value.grad is None else value.grad.detach().clone() for value in wanted}
    for value, grad in zip(wanted, before, strict=True):
        value.grad = grad
    return tuple(found.get(id(value)) for value in inputs)


@fault("space.*.lists-kept-*", raises=True, takes="lists=lists-kept")
def weights_taken_off_the_list() -> Target:
    """I removes the weights from the caller's list, one by one."""

    def input_pass(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Any) -> Passed:
        taken = list(weights)
        if isinstance(weights, list):
            weights.clear()
        return RIGHT.input_pass(outputs, grads, inputs, iter(taken))

    def full(outputs: Any, grads: Any, inputs: Any) -> Grads:
        found = RIGHT.full(outputs, grads, inputs)
        inputs.pop()
        return found

    return per_session(lambda _: Functions(full=full, input_pass=input_pass))


@fault("space.*.lists-kept-*", raises=True, takes="lists=lists-kept")
def tensors_in_the_lists_replaced() -> Target:
    """After use, the tensors in the caller's lists of inputs and output gradients are replaced, to free them."""

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Any) -> Grads:
        found = run(outputs, grads, inputs)
        for one in (grads, inputs):
            if isinstance(one, list):
                one[:] = [None] * len(one)
        return found

    return target(backwards(around))


@fault("space.*.earlier-graph-*", takes="owner=earlier-graph", shows_by="memory")
@alters(with_session)
class ArgumentsWrittenBack(FunctionsSession):
    """After its micro-batches, an argument is written in place with the same values."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        vars(self).setdefault("fed", {})[mb] = args
        return super().forward(mb, args, target)

    def _write_back(self, mb: int) -> None:
        fed = vars(self)["fed"]
        args = fed.pop(mb)
        for arg in args:
            waits = any(arg is other for others in fed.values() for other in others)
            if isinstance(arg, Tensor) and arg.requires_grad and not isinstance(arg, nn.Parameter) and not waits:
                one = arg.detach()[(slice(1),) * arg.dim()] if not any(arg.stride()) else arg.detach()
                one.copy_(one.clone())

    def backward(self, mb: int, output_grads: Any) -> Grads:
        found = super().backward(mb, output_grads)
        self._write_back(mb)
        return found

    def backward_weight(self, mb: int) -> Grads | None:
        found = super().backward_weight(mb)
        self._write_back(mb)
        return found


@fault("space.*.evaluated-*", cause=("zero", "never_accumulated", "missing"), takes="forwards=evaluated")
@alters(with_session)
class EvaluationEndsTheTraining(_WithoutWeights):
    """A forward without gradients counts as the end of training: later, no weight gets a gradient."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        if "hook" not in vars(self):
            vars(self)["hook"] = self._stage.register_forward_hook(self._look)
        return super().forward(mb, args, target)

    def _look(self, *_: Any) -> None:
        if not torch.is_grad_enabled():
            vars(self)["ended"] = True

    def backward(self, mb: int, output_grads: Any) -> Grads:
        ended = vars(self).get("ended", False)
        found: Grads = self.without_weights(lambda: FunctionsSession.backward(self, mb, output_grads), taken_back=ended)
        return found

    def backward_weight(self, mb: int) -> Grads | None:
        ended = vars(self).get("ended", False)
        found: Grads | None = self.without_weights(lambda: FunctionsSession.backward_weight(self, mb), taken_back=ended)
        return found

    def close(self) -> None:
        if "hook" in vars(self):
            vars(self).pop("hook").remove()
        super().close()


@fault("space.*.lost-forward-*", cause="first_forward_kept", takes="forwards=lost-forward")
@alters(with_session)
class FirstForwardOfANumberKept(FunctionsSession):
    """A second forward of a micro-batch number runs, but the backward uses the graph of the first."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        first = self._forwards.get(mb)
        outputs = super().forward(mb, args, target)
        if first is not None:
            self._forwards[mb] = first
        return outputs


@fault(
    "space.split.reversed-list-*",
    cause=("other_parameter", "never_accumulated"),
    raises=True,
    takes="weights=reversed-list",
)
def gradients_given_by_the_place_of_the_weight() -> Target:
    """W assigns gradients by the positions of weights in the list that I received."""

    def make(_: Any) -> Functions:
        order: list[nn.Parameter] = []

        def input_pass(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Weights) -> Passed:
            order[:] = list(weights)
            return RIGHT.input_pass(outputs, grads, inputs, iter(order))

        def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
            run(parameters, groups)
            moved = len(order) == len(parameters) and any(a is not b for a, b in zip(order, parameters, strict=True))
            grads = [parameter.grad for parameter in order]
            for parameter, grad in zip(parameters, grads, strict=True) if moved else ():
                fits = grad is None or grad.shape == parameter.shape
                parameter.grad = grad if fits else None

        return Functions(input_pass=input_pass, weight_pass=weight_passes(around).weight_pass)

    return per_session(make)


@fault("space.split.listed-twice-*", cause="counted_twice", takes="weights=listed-twice")
def weight_listed_twice_counted_twice() -> Target:
    """A weight that is twice in the list gets its gradient twice."""

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        several = [one for place, one in enumerate(parameters) if any(one is other for other in parameters[:place])]
        before = [None if one.grad is None else one.grad.detach().clone() for one in several]
        run(parameters, groups)
        for parameter, held in zip(several, before, strict=True):
            if parameter.grad is not None:
                parameter.grad = parameter.grad * 2.0 if held is None else parameter.grad * 2.0 - held

    return per_session(lambda _: weight_passes(around))


@fault("space.split.in-two-parts-*", cause=("missing", "never_accumulated"), takes="weights=in-two-parts")
def second_part_of_the_weights_lost() -> Target:
    """The first W of an I counts as the last one, so a second W with other weights does nothing."""

    def make(_: Any) -> Functions:
        of_input_pass: dict[int, tuple[Any, list[bool]]] = {}

        def input_pass(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Weights) -> Passed:
            found, context = by_uses.stage_backward_input(outputs, grads, inputs, weights)
            done: list[bool] = []
            of_input_pass.update({id(group): (group, done) for group in context})
            return found, context

        def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
            done = of_input_pass[id(groups[0])][1] if groups else [True]
            if done:
                return tuple(parameter.grad for parameter in weights)
            done.append(True)
            return by_uses.stage_backward_weight(weights, groups, retain_graph)

        return replace(BY_USES, input_pass=input_pass, weight_pass=weight_pass)

    return per_session(make)
