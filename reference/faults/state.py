"""Faults of state: changes of objects that an action must not change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    Grads,
    Passed,
    Weights,
    after_backwards,
    alters,
    backwards,
    each_input_grad,
    input_passes,
    replaces,
    stored_as,
    target,
    weight_passes,
    with_session,
)
from .registry import fault


@fault("state.args.*")
@alters(after_backwards)
def inputs_zeroed(_: Any, __: Any, inputs: Sequence[Any]) -> None:
    """The values of inputs are set to zero after their gradients are computed."""
    for value in inputs:
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            value.data.zero_()


@fault("state.output_grads.*")
@alters(backwards)
def output_grads_cleared(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """Output gradients are cleared after they are read, like a receive buffer."""
    copies = map_leaves(lambda grad: grad.clone() if isinstance(grad, Tensor) else grad, grads)
    found = run(outputs, copies, inputs)
    for grad in tensors(grads):
        grad.zero_()
    return found


@fault("state.params.*")
@alters(stored_as)
def parameters_rounded(parameters: Sequence[nn.Parameter]) -> None:
    """Parameters are rounded to multiples of 1/8 in place after their gradients are computed."""
    for parameter in parameters:
        if parameter.is_floating_point():
            parameter.data.copy_((parameter.data * 8).round() / 8)


@fault("state.buffers.batch-norm-*", "state.recomputed_buffers.*")
@alters(with_session)
class ForwardRunTwice(Backwards):
    """The forward runs a second time before the backward, so that buffers are updated twice."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        args = [arg.detach().clone() if isinstance(arg, Tensor) else arg for arg in self._forwards[mb][0]]
        with torch.no_grad():
            self._stage(*args)
        return backward(mb, output_grads)


@fault("state.buffers.*", takes="parameters=buffer")
@alters(with_session)
class BuffersCleared(FunctionsSession):
    """Buffers are cleared after a backward."""

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


@fault("state.requires_grad.frozen-layer-split")
@alters(weight_passes)
def frozen_parameters_thaw(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
    """W sets requires_grad on every parameter."""
    run(parameters, groups)
    for parameter in parameters:
        parameter.requires_grad_()


@fault("state.requires_grad.*")
@alters(after_backwards)
def inputs_left_frozen(_: Any, __: Any, inputs: Sequence[Any]) -> None:
    """Inputs lose requires_grad after their gradients are computed."""
    for value in inputs:
        if isinstance(value, Tensor) and value.is_leaf and not isinstance(value, nn.Parameter):
            value.requires_grad = False


@fault("state.rng.*", takes="watched=state")
@alters(after_backwards)
def random_numbers_drawn(_: Any, __: Any, ___: Any) -> None:
    """Every backward draws a random number."""
    torch.rand(())


@fault("state.input_grad.*", cause="counted_twice")
@alters(each_input_grad)
def input_grad_attribute_doubled(value: Any, grad: Tensor) -> Tensor:
    """The .grad of an input is set to twice the returned gradient."""
    if value.is_leaf and not isinstance(value, nn.Parameter):
        value.grad = 2.0 * grad
    return grad


@fault(
    "state.input_pass.mlp", "state.input_pass.layer-norm", "state.input_pass.prior", "accumulate.order.split-deferred"
)
def input_pass_writes_biases() -> Target:
    """Without a claim, I accumulates the gradients of biases; W accumulates the others."""

    def early(run: Callable[[], Passed], _: Any, parameters: list[nn.Parameter]) -> Passed:
        found, context = run()
        biases = [parameter for parameter in parameters if parameter.dim() == 1]
        RIGHT.weight_pass(iter(biases), [dict(group) for group in context], retain_graph=True)
        return found, context

    def late(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        run([parameter for parameter in parameters if parameter.dim() != 1], groups)

    return target(weight_passes(late, input_passes(early)))


@fault("state.input_pass.*", "accumulate.order.split-deferred")
@alters(input_passes)
def input_pass_does_everything(run: Callable[[], Passed], _: Any, parameters: list[nn.Parameter]) -> Passed:
    """I is a full backward, and W does nothing."""
    found, context = run()
    RIGHT.weight_pass(iter(parameters), context)
    return found, []


@fault("state.weight_result.*", cause=("stale", "stale_nothing"))
@replaces("weight_pass")
def stale_weight_result(weights: Weights, groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
    """W returns the gradients from before it."""
    parameters = list(weights)
    before = tuple(None if parameter.grad is None else parameter.grad.clone() for parameter in parameters)
    RIGHT.weight_pass(iter(parameters), groups, retain_graph)
    return before


@fault("*.gradients.batch-norm", "*.gradients.dropout", "accumulate.stage.dropout", cause="eval_mode")
@alters(with_session)
class StageLeftInEvalMode(Backwards):
    """A backward leaves the stage in eval mode, so that the next forward draws and updates nothing."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        self._stage.eval()
        return backward(mb, output_grads)


@fault("*.gradients.mlp", "accumulate.steps.*-no-zero", cause="cleared")
@alters(with_session)
class GradientsWipedAtFinish(FunctionsSession):
    """The end of a step clears the parameter gradients."""

    def finish(self) -> None:
        super().finish()
        self._stage.zero_grad()


@fault("*.gradients.mlp")
def returned_gradients_require_grad() -> Target:
    """Returned gradients require a gradient themselves."""
    return target(each_input_grad(lambda _, grad: grad.requires_grad_()))


@fault("*.gradients.mlp", "accumulate.iterations.*", cause={"kind": "history", "names": ["CloneBackward0"]})
@alters(stored_as)
def gradients_with_a_history(parameters: list[nn.Parameter]) -> None:
    """Gradients are added up while autograd records, so .grad holds the graph of its own sum."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.layout == torch.strided:
            parameter.grad = parameter.grad.requires_grad_().clone()


@fault("state.requires_grad.output-is-parameter-full", "state.requires_grad.output-is-input-full")
def outputs_detached_in_place() -> Target:
    """B detaches the outputs in place to free the graph, even those that are parameters or inputs."""

    def detach(outputs: Any, _: Any, __: Any) -> None:
        for output in tensors(outputs):
            if not output._is_view():
                output.detach_()

    return target(replace(after_backwards(detach), input_pass=RIGHT.input_pass))
