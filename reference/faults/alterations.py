"""Small changes to the right implementation, of which faults are made.

``RIGHT`` are the three functions of ``gradconform.reference.split``. An alteration takes functions and returns
functions, so that two of them can be put on top of each other; :func:`target` makes a target of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from gradconform.adapter import Capabilities, StageSpec
from gradconform.fixtures.trees import leaves
from gradconform.functions import FULL, SPLIT, FunctionsAdapter, FunctionsSession
from gradconform.reference import split
from gradconform.targets import Target

from .graph import Graph

Grads = tuple[Tensor | None, ...]
Context = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Functions:
    """The three functions of a split backward."""

    full: Callable[..., Grads] = split.stage_backward
    input_pass: Callable[..., tuple[Grads, Context]] = split.stage_backward_input
    weight_pass: Callable[..., Grads] = split.stage_backward_weight

    def named(self) -> dict[str, Callable[..., Any]]:
        """Return the functions by torch's names."""
        return dict(zip((FULL, *SPLIT), (self.full, self.input_pass, self.weight_pass), strict=True))


RIGHT = Functions()


class _Opened(FunctionsAdapter):
    """The kit's own adapter for functions, with functions or a session made anew for every stage that is opened."""

    def __init__(self, open_: Callable[[nn.Module, StageSpec], FunctionsSession], claims: dict[str, Any]) -> None:
        super().__init__("fault", RIGHT.named(), {**split.gradconform_capabilities, **claims})
        self._open = open_

    def open(self, stage: nn.Module, spec: StageSpec) -> FunctionsSession:
        return self._open(stage, spec)


def _target(open_: Callable[[nn.Module, StageSpec], FunctionsSession], claims: dict[str, Any]) -> Target:
    adapter = _Opened(open_, claims)
    claimed: Capabilities = adapter.capabilities
    return Target(text="fault", adapter=adapter, capabilities=claimed, own_adapter=False)


def target(functions: Functions, **claims: Any) -> Target:
    """Return a target of functions that keep no state, or keep it in the process."""
    return _target(lambda stage, spec: FunctionsSession(functions.named(), stage, spec), claims)


def per_session(make: Callable[[StageSpec], Functions], **claims: Any) -> Target:
    """Return a target whose functions are made for each session, so that they can keep state of its own."""
    return _target(lambda stage, spec: FunctionsSession(make(spec).named(), stage, spec), claims)


def with_session(session: type[FunctionsSession], functions: Functions = RIGHT, **claims: Any) -> Target:
    """Return a target whose functions are right and whose session is not."""
    return _target(lambda stage, spec: session(functions.named(), stage, spec), claims)


# ---- what the functions are given


def flat(outputs: Any, grads: Any) -> tuple[list[Any], Any]:
    """Return outputs as a list and, where the gradients mirror them, the gradients too; else these as they are."""
    wanted = list(leaves(outputs))
    given = list(leaves(grads))
    listed = [path for path, _ in wanted] == [path for path, _ in given]
    return [output for _, output in wanted], [grad for _, grad in given] if listed else grads


def output_grads(edit: Callable[[list[Any], Any], Any], functions: Functions = RIGHT) -> Functions:
    """Edit the output gradients: ``edit(outputs, grads)``, outputs in a list, and gradients too if they mirror them.

    A backward that starts at a loss is left alone.
    """

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        if grads is None:
            return functions.full(outputs, grads, inputs)
        listed, given = flat(outputs, grads)
        return functions.full(listed, edit(listed, given), inputs)

    def input_pass(
        outputs: Sequence[Any], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[Grads, Context]:
        if grads is None:
            return functions.input_pass(outputs, grads, inputs, weights)
        listed, given = flat(list(outputs), grads)
        return functions.input_pass(listed, edit(listed, given), inputs, weights)

    return replace(functions, full=full, input_pass=input_pass)


# ---- what the functions return


def input_grads(edit: Callable[[Sequence[Any], Grads], Any], functions: Functions = RIGHT) -> Functions:
    """Edit what B and I return: ``edit(inputs, grads)``."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        result: Grads = edit(inputs, functions.full(outputs, grads, inputs))
        return result

    def input_pass(
        outputs: Sequence[Any], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[Grads, Context]:
        found, context = functions.input_pass(outputs, grads, inputs, weights)
        return edit(inputs, found), context

    return replace(functions, full=full, input_pass=input_pass)


# ---- what the functions accumulate

ParameterEdit = Callable[[nn.Parameter, Tensor, Graph], Tensor]


@contextlib.contextmanager
def edited(parameters: Iterable[nn.Parameter], graph: Graph, edit: ParameterEdit) -> Iterator[None]:
    """Edit the gradient of each parameter on its way to ``.grad``, by hooks that are gone afterwards."""

    def hook_of(parameter: nn.Parameter) -> Callable[[Tensor | None], Tensor | None]:
        # A custom function may give None, for which autograd calls hooks all the same.
        return lambda grad: None if grad is None else edit(parameter, grad, graph)

    handles = [parameter.register_hook(hook_of(parameter)) for parameter in parameters if parameter.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def param_grads(edit: ParameterEdit, functions: Functions = RIGHT) -> Functions:
    """Edit what B and W add: ``edit(parameter, added, graph)``, called before it is added."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        graph = Graph.behind(outputs)
        with edited(graph.parameters(), graph, edit):
            return functions.full(outputs, grads, inputs)

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        with edited(parameters, Graph.of_context(groups), edit):
            return functions.weight_pass(iter(parameters), groups, retain_graph)

    return replace(functions, full=full, weight_pass=weight_pass)


def every_grad(edit: Callable[[Tensor], Tensor]) -> Functions:
    """Edit every gradient, of inputs and of parameters."""
    found = input_grads(lambda _, grads: tuple(None if grad is None else edit(grad) for grad in grads))
    return param_grads(lambda _, grad, __: edit(grad), found)


def without(dropped: Callable[[nn.Parameter, Graph], bool]) -> Functions:
    """Leave out the gradients of the parameters for which ``dropped(parameter, graph)`` holds."""

    @contextlib.contextmanager
    def leaving_out(parameters: Sequence[nn.Parameter], graph: Graph) -> Iterator[None]:
        left = [parameter for parameter in parameters if parameter.requires_grad and dropped(parameter, graph)]
        none = [parameter for parameter in left if parameter.grad is None]
        with edited(left, graph, lambda _, grad, __: grad * 0.0):
            yield
        for parameter in none:
            parameter.grad = None

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        graph = Graph.behind(outputs)
        with leaving_out(graph.parameters(), graph):
            return RIGHT.full(outputs, grads, inputs)

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        with leaving_out(parameters, Graph.of_context(groups)):
            RIGHT.weight_pass(iter(parameters), groups, retain_graph)
        return tuple(parameter.grad for parameter in parameters)

    return replace(RIGHT, full=full, weight_pass=weight_pass)


# ---- what happens around the functions


def afterwards(
    after_full: Callable[[Any, Any, Sequence[Any]], object] | None = None,
    after_input: Callable[[Any, Any, Sequence[Any]], object] | None = None,
    after_weight: Callable[[list[nn.Parameter]], object] | None = None,
) -> Functions:
    """Do something more after the right function: after B and I with their arguments, after W with the weights."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        found = RIGHT.full(outputs, grads, inputs)
        if after_full is not None:
            after_full(outputs, grads, inputs)
        return found

    def input_pass(
        outputs: Sequence[Any], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[Grads, Context]:
        found = RIGHT.input_pass(outputs, grads, inputs, weights)
        if after_input is not None:
            after_input(outputs, grads, inputs)
        return found

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        found = RIGHT.weight_pass(iter(parameters), groups, retain_graph)
        if after_weight is not None:
            after_weight(parameters)
        return found

    return Functions(full, input_pass, weight_pass)


def stored_as(replace_grads: Callable[[list[nn.Parameter]], object]) -> Target:
    """Return a target that lets ``replace_grads`` put other tensors into ``.grad`` once B or W has run."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        parameters = Graph.behind(outputs).parameters()
        found = RIGHT.full(outputs, grads, inputs)
        replace_grads(parameters)
        return found

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        RIGHT.weight_pass(iter(parameters), groups, retain_graph)
        replace_grads(parameters)
        return tuple(parameter.grad for parameter in parameters)

    return target(Functions(full=full, weight_pass=weight_pass))
