"""Faults of state: what an action has to leave as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target
from gradconform.trees import map_leaves, tensors

from .alterations import (
    RIGHT,
    Backwards,
    Context,
    Functions,
    Grads,
    after_backwards,
    backwards,
    each_input_grad,
    stored_as,
    target,
    weight_passes,
    with_session,
)
from .registry import fault


@fault("state.args.*")
def inputs_zeroed() -> Target:
    """The values of inputs are zeroed once their gradients are taken."""

    def zero(_: Any, __: Any, inputs: Sequence[Any]) -> None:
        for value in inputs:
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                value.data.zero_()

    return target(after_backwards(zero))


@fault("state.output_grads.*")
def output_grads_cleared() -> Target:
    """Output gradients are cleared once they are read, as a receive buffer would be."""

    def around(run: Callable[..., Any], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Any:
        copies = map_leaves(lambda grad: grad.clone() if isinstance(grad, Tensor) else grad, grads)
        found = run(outputs, copies, inputs)
        for grad in tensors(grads):
            grad.zero_()
        return found

    return target(backwards(around))


@fault("state.params.*")
def parameters_rounded() -> Target:
    """Parameters are rounded to eighths in place once their gradients are there."""

    def rounded(parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.is_floating_point():
                parameter.data.copy_((parameter.data * 8).round() / 8)

    return stored_as(rounded)


@fault("state.buffers.batch-norm-*")
def forward_run_twice() -> Target:
    """The forward is run once more before the backward, so that buffers are updated twice."""

    class Session(Backwards):
        def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
            args = [arg.detach().clone() if isinstance(arg, Tensor) else arg for arg in self._forwards[mb][0]]
            with torch.no_grad():
                self._stage(*args)
            return backward(mb, output_grads)

    return with_session(Session)


@fault("state.buffers.*")
def buffers_cleared() -> Target:
    """Buffers are cleared after a backward."""

    class Session(FunctionsSession):
        def backward(self, mb: int, output_grads: Any) -> Grads:
            found = super().backward(mb, output_grads)
            self._clear()
            return found

        def backward_weight(self, mb: int) -> Grads | None:
            found = super().backward_weight(mb)
            self._clear()
            return found

        def _clear(self) -> None:
            for buffer in self._stage.buffers():
                buffer.data.zero_()

    return with_session(Session)


@fault("state.requires_grad.frozen-layer-split")
def frozen_parameters_thaw() -> Target:
    """W leaves every parameter with requires_grad set."""

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        run(parameters, groups)
        for parameter in parameters:
            parameter.requires_grad_()

    return target(weight_passes(around))


@fault("state.requires_grad.*")
def inputs_left_frozen() -> Target:
    """Inputs are left without requires_grad once their gradients are taken."""

    def freeze(_: Any, __: Any, inputs: Sequence[Any]) -> None:
        for value in inputs:
            if isinstance(value, Tensor) and value.is_leaf and not isinstance(value, nn.Parameter):
                value.requires_grad = False

    return target(after_backwards(freeze))


@fault("state.rng.*")
def random_numbers_drawn() -> Target:
    """A random number is drawn in every backward."""

    def draw(_: Any, __: Any, ___: Any) -> None:
        torch.rand(())

    return target(after_backwards(draw))


@fault("state.input_grad.*", cause="counted_twice")
def input_grad_attribute_doubled() -> Target:
    """The .grad of an input is set to twice what is returned."""

    def edit(value: Any, grad: Tensor) -> Tensor:
        if value.is_leaf and not isinstance(value, nn.Parameter):
            value.grad = 2.0 * grad
        return grad

    return target(each_input_grad(edit))


@fault(
    "state.input_pass.mlp", "state.input_pass.layer-norm", "state.input_pass.prior", "accumulate.order.split-deferred"
)
def input_pass_writes_biases() -> Target:
    """I accumulates the gradients of biases already, without a claim; W accumulates the others."""

    def input_pass(
        outputs: Sequence[Any], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[Grads, Context]:
        parameters = list(weights)
        found, context = RIGHT.input_pass(outputs, grads, inputs, iter(parameters))
        biases = [parameter for parameter in parameters if parameter.dim() == 1]
        RIGHT.weight_pass(iter(biases), [dict(group) for group in context], retain_graph=True)
        return found, context

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        others = [parameter for parameter in parameters if parameter.dim() != 1]
        RIGHT.weight_pass(iter(others), groups, retain_graph)
        return tuple(parameter.grad for parameter in parameters)

    return target(Functions(input_pass=input_pass, weight_pass=weight_pass))


@fault("state.input_pass.*", "accumulate.order.split-deferred")
def input_pass_does_everything() -> Target:
    """I is a full backward, and W does nothing."""

    def input_pass(
        outputs: Any, grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[Grads, Context]:
        parameters = list(weights)
        found, context = RIGHT.input_pass(outputs, grads, inputs, iter(parameters))
        RIGHT.weight_pass(iter(parameters), context)
        return found, []

    return target(Functions(input_pass=input_pass))


@fault("state.weight_result.*", cause=("stale", "stale_nothing"))
def stale_weight_result() -> Target:
    """W returns the gradients that stood before it."""

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        before = tuple(None if parameter.grad is None else parameter.grad.clone() for parameter in parameters)
        RIGHT.weight_pass(iter(parameters), groups, retain_graph)
        return before

    return target(Functions(weight_pass=weight_pass))


@fault("*.gradients.batch-norm", "*.gradients.dropout", "accumulate.stage.dropout", cause="eval_mode")
def stage_left_in_eval_mode() -> Target:
    """The stage is left in eval mode by a backward, so that the next forward draws and updates nothing."""

    class Session(Backwards):
        def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
            self._stage.eval()
            return backward(mb, output_grads)

    return with_session(Session)


@fault("*.gradients.mlp", "accumulate.steps.full-no-zero", "accumulate.steps.split-no-zero", cause="cleared")
def gradients_wiped_at_finish() -> Target:
    """The end of a step clears the parameter gradients."""

    class Session(FunctionsSession):
        def finish(self) -> None:
            super().finish()
            self._stage.zero_grad()

    return with_session(Session)


@fault("*.gradients.mlp")
def returned_gradients_require_grad() -> Target:
    """What is returned requires a gradient itself."""
    return target(each_input_grad(lambda _, grad: grad.requires_grad_()))


@fault("state.requires_grad.output-is-parameter-full", "state.requires_grad.output-is-input-full")
def outputs_detached_in_place() -> Target:
    """B detaches the outputs in place to free the graph, also those that are parameters or inputs."""

    def detach(outputs: Any, _: Any, __: Any) -> None:
        for output in tensors(outputs):
            if not output._is_view():
                output.detach_()

    return target(replace(after_backwards(detach), input_pass=RIGHT.input_pass))
