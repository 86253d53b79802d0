"""Faults of state: what an action has to leave as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.fixtures.trees import map_leaves, tensors
from gradconform.functions import FunctionsSession
from gradconform.targets import Target

from .alterations import RIGHT, Context, Functions, Grads, afterwards, input_grads, target, with_session
from .graph import Graph
from .registry import fault


@fault("state.args.*")
def inputs_zeroed() -> Target:
    """The values of inputs are zeroed once their gradients are taken."""

    def zero(_: Any, __: Any, inputs: Sequence[Any]) -> None:
        for value in inputs:
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                value.data.zero_()

    return target(afterwards(after_full=zero, after_input=zero))


@fault("state.output_grads.*")
def output_grads_cleared() -> Target:
    """Output gradients are cleared once they are read, as a receive buffer would be."""

    def copies(grads: Any) -> Any:
        return map_leaves(lambda grad: grad.clone() if isinstance(grad, Tensor) else grad, grads)

    def clear(grads: Any) -> None:
        for grad in tensors(grads):
            grad.zero_()

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        found = RIGHT.full(outputs, copies(grads), inputs)
        clear(grads)
        return found

    def input_pass(
        outputs: Sequence[Any], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[Grads, Context]:
        found = RIGHT.input_pass(outputs, copies(grads), inputs, weights)
        clear(grads)
        return found

    return target(Functions(full=full, input_pass=input_pass))


@fault("state.params.*")
def parameters_rounded() -> Target:
    """Parameters are rounded to eighths in place once their gradients are there."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        parameters = Graph.behind(outputs).parameters()
        found = RIGHT.full(outputs, grads, inputs)
        rounded(parameters)
        return found

    def rounded(parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.is_floating_point():
                parameter.data.copy_((parameter.data * 8).round() / 8)

    return target(Functions(full, RIGHT.input_pass, afterwards(after_weight=rounded).weight_pass))


@fault("state.buffers.batch-norm-*")
def forward_run_twice() -> Target:
    """The forward is run once more before the backward, so that buffers are updated twice."""

    class Session(FunctionsSession):
        def backward(self, mb: int, output_grads: Any) -> Grads:
            self._again(mb)
            return super().backward(mb, output_grads)

        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            self._again(mb)
            return super().backward_input(mb, output_grads)

        def _again(self, mb: int) -> None:
            args = [arg.detach().clone() if isinstance(arg, Tensor) else arg for arg in self._forwards[mb][0]]
            with torch.no_grad():
                self._stage(*args)

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

    def thaw(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            parameter.requires_grad_()

    return target(afterwards(after_weight=thaw))


@fault("state.requires_grad.*")
def inputs_left_frozen() -> Target:
    """Inputs are left without requires_grad once their gradients are taken."""

    def freeze(_: Any, __: Any, inputs: Sequence[Any]) -> None:
        for value in inputs:
            if isinstance(value, Tensor) and value.is_leaf and not isinstance(value, nn.Parameter):
                value.requires_grad = False

    return target(afterwards(after_full=freeze, after_input=freeze))


@fault("state.rng.*")
def random_numbers_drawn() -> Target:
    """A random number is drawn in every backward."""

    def draw(_: Any, __: Any, ___: Any) -> None:
        torch.rand(())

    return target(afterwards(after_full=draw, after_input=draw))


@fault("state.input_grad.*", cause="counted twice")
def input_grad_attribute_doubled() -> Target:
    """The .grad of an input is set to twice what is returned."""

    def edit(inputs: Sequence[Any], grads: Grads) -> Grads:
        for value, grad in zip(inputs, grads, strict=True):
            if grad is not None and value.is_leaf and not isinstance(value, nn.Parameter):
                value.grad = 2.0 * grad
        return grads

    return target(input_grads(edit))


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
        outputs: Sequence[Any], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[Grads, Context]:
        parameters = list(weights)
        found, context = RIGHT.input_pass(outputs, grads, inputs, iter(parameters))
        RIGHT.weight_pass(iter(parameters), context)
        return found, []

    return target(Functions(input_pass=input_pass))


@fault("state.weight_result.*", cause="what stood before this W")
def stale_weight_result() -> Target:
    """W returns the gradients that stood before it."""

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        before = tuple(None if parameter.grad is None else parameter.grad.clone() for parameter in parameters)
        RIGHT.weight_pass(iter(parameters), groups, retain_graph)
        return before

    return target(Functions(weight_pass=weight_pass))


@fault("*.gradients.batch-norm", "*.gradients.dropout", "accumulate.stage.dropout", cause="the stage is in eval mode")
def stage_left_in_eval_mode() -> Target:
    """The stage is left in eval mode by a backward, so that the next forward draws and updates nothing."""

    class Session(FunctionsSession):
        def backward(self, mb: int, output_grads: Any) -> Grads:
            self._stage.eval()
            return super().backward(mb, output_grads)

        def backward_input(self, mb: int, output_grads: Any) -> Grads:
            self._stage.eval()
            return super().backward_input(mb, output_grads)

    return with_session(Session)


@fault(
    "*.gradients.mlp",
    "accumulate.steps.full-no-zero",
    "accumulate.steps.split-no-zero",
    cause="cleared after it was accumulated",
)
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
    return target(input_grads(lambda _, grads: tuple(None if g is None else g.requires_grad_() for g in grads)))


@fault("state.requires_grad.output-is-parameter-full", "state.requires_grad.output-is-input-full")
def outputs_detached_in_place() -> Target:
    """B detaches the outputs in place to free the graph, also those that are parameters or inputs."""

    def detach(outputs: Any, _: Any, __: Any) -> None:
        for output in tensors(outputs):
            if not output._is_view():
                output.detach_()

    return target(afterwards(after_full=detach))
