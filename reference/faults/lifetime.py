"""Faults of lifetime: objects that stay alive too long, or are freed too early."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target
from gradconform.trees import tensors

from .alterations import (
    RIGHT,
    Context,
    Functions,
    Grads,
    Graph,
    Passed,
    after_backwards,
    alters,
    backwards,
    flat,
    input_passes,
    keeping,
    per_session,
    replaces,
    target,
    weight_passes,
    with_session,
)
from .registry import fault


@fault("lifetime.full.*", "lifetime.split.*", "lifetime.outputs_between.*")
def outputs_kept_in_a_list() -> Target:
    """Outputs are kept in a list of the session."""
    return keeping(lambda outputs, _, __: tensors(outputs))


@fault("lifetime.full.*", "lifetime.split.*", "lifetime.loss.*", "lifetime.growth.*")
@alters(after_backwards)
def outputs_kept_by_a_cycle(outputs: Any, _: Any, __: Any) -> None:
    """A reference cycle holds the outputs until the garbage collector runs."""

    def walk(depth: int) -> Any:
        return walk(depth - 1) if depth else outputs


@fault("lifetime.full.[!c]*", "lifetime.full.custom-linear")  # I itself frees the graph of a checkpointed forward
@replaces("full")
def graph_retained(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """The graph is kept after B, as for another backward."""
    parameters = Graph.behind(outputs).parameters()
    listed, given = flat(outputs, grads)
    found, context = RIGHT.input_pass(listed, given, inputs, iter(parameters))
    RIGHT.weight_pass(iter(parameters), context, retain_graph=True)
    return found


class _KeepsContexts(FunctionsSession):
    kept: tuple[Context, ...] = ()

    def backward_weight(self, mb: int) -> Grads | None:
        self.kept = (*self.kept, [dict(group) for group in self._contexts[mb]])
        return super().backward_weight(mb)


@fault("lifetime.growth.split")
def contexts_kept() -> Target:
    """Weight contexts are kept after W."""
    return with_session(_KeepsContexts)


@fault("lifetime.split.[!c]*", "lifetime.split.custom-linear")  # I itself frees the graph of a checkpointed forward
def contexts_kept_with_their_graphs() -> Target:
    """W retains the graph, and its context is kept."""
    retaining = weight_passes(lambda run, parameters, groups: run(parameters, groups, retain=True))
    return with_session(_KeepsContexts, retaining)


@fault("lifetime.growth.*")
def norms_kept() -> Target:
    """One tensor per micro-batch is kept for a log."""
    return keeping(lambda _, grads, __: [grad.norm() for grad in tensors(grads)])


@fault("lifetime.full.*", "lifetime.split.*")
@alters(after_backwards)
def hooks_left_on_parameters(outputs: Any, _: Any, __: Any) -> None:
    """Each micro-batch sets a hook on every parameter, which holds the outputs and is never removed."""
    for parameter in Graph.behind(outputs).parameters():
        parameter.register_hook(lambda grad, held=outputs: None)  # noqa: ARG005 (holding is what it is for)


@fault("lifetime.reopened.*", cause="zero")
@alters(with_session)
class HooksOfAClosedSession(FunctionsSession):
    """The session's hooks on parameters remain after close, and block the gradients of the next session."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(functions, stage, spec)
        self.closed = False
        for parameter in stage.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda grad: torch.zeros_like(grad) if self.closed else None)

    def close(self) -> None:
        super().close()
        self.closed = True


@fault("lifetime.outputs_between.*")
@alters(input_passes)
def outputs_kept_in_the_context(run: Callable[[], Passed], outputs: list[Any], _: Any) -> Passed:
    """The weight context holds the outputs until W."""
    found, context = run()
    return found, [{**group, "outputs": list(outputs)} for group in context]


@fault("lifetime.full.*", "lifetime.split.*")
def inputs_kept() -> Target:
    """Inputs are kept in a list of the session."""
    return keeping(lambda _, __, inputs: inputs)


@fault("lifetime.dropped.*", cause="never_accumulated", takes="caller=drops")
def outputs_referred_to_weakly() -> Target:
    """The weight context has weak references to the outputs, and W does nothing if they are gone."""

    def referring(run: Callable[[], Passed], outputs: list[Any], _: Any) -> Passed:
        found, context = run()
        held = [weakref.ref(output) for output in outputs if output.dim()]  # nothing else holds a loss
        return found, [{**group, "outputs": held} for group in context]

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        run(parameters, [group for group in groups if all(output() is not None for output in group.get("outputs", ()))])

    return target(weight_passes(around, input_passes(referring)))


@fault("lifetime.loss.*")
def losses_kept() -> Target:
    """Losses and their graphs are kept for a log."""
    return keeping(lambda outputs, grads, _: [outputs] if grads is None else [])


@fault("lifetime.after_error.*")
@alters(per_session)
def exceptions_kept(_: StageSpec) -> Functions:
    """An exception is kept for a report, and its frames keep the micro-batch alive."""
    kept: list[Exception] = []

    def around(run: Callable[..., Grads], *given: Any) -> Grads:
        try:
            return run(*given)
        except Exception as error:
            kept.append(error)
            raise

    return backwards(around)


@fault("lifetime.outputs_between.mlp", "lifetime.dropped.*", raises=True)
@alters(input_passes)
def graph_released_by_the_input_pass(run: Callable[[], Passed], outputs: list[Any], _: Any) -> Passed:
    """I frees the saved tensors of the graph that W needs."""
    found, context = run()
    roots = [output for output in outputs if output.requires_grad and output.grad_fn is not None]
    wanted = [leaf for leaf in Graph.behind(roots).leaves() if leaf.requires_grad]
    if roots and wanted:
        torch.autograd.grad(roots, wanted, [torch.ones_like(root) for root in roots], allow_unused=True)
    return found, context


@fault("lifetime.full.[!c]*", "lifetime.full.custom-linear")  # I itself frees the graph of a checkpointed forward
@replaces("full")
def graph_of_the_gradients_built(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """B builds the graph of the gradients too, as for a second derivative, and .grad keeps it alive."""
    parameters = Graph.behind(outputs).parameters()
    listed, given = flat(outputs, grads)
    roots = [output for output in listed if isinstance(output, Tensor) and output.requires_grad]
    starts = None if given is None else [g for o, g in zip(listed, given, strict=True) if o.requires_grad]
    wanted = [value for value in inputs if isinstance(value, Tensor) and value.requires_grad]
    found = torch.autograd.grad(roots, [*wanted, *parameters], starts, create_graph=True, allow_unused=True)
    for parameter, grad in zip(parameters, found[len(wanted) :], strict=True):
        parameter.grad = grad if parameter.grad is None or grad is None else parameter.grad + grad
    remaining = iter(found)
    return tuple(next(remaining) if isinstance(v, Tensor) and v.requires_grad else None for v in inputs)
