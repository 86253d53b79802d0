"""Faults of hooks: called too often, never, too early, or with something else than the gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from gradconform.functions import FunctionsSession
from gradconform.targets import Target

from .alterations import RIGHT, Context, Functions, Grads, flat, target, with_session
from .graph import Graph
from .registry import fault

_TENSOR, _POST = "_backward_hooks", "_post_accumulate_grad_hooks"


@contextlib.contextmanager
def _silent(held: Sequence[Any], *kinds: str) -> Iterator[None]:
    """Take the hooks off parameters or modules, and put them back."""
    tables = [table for one in held for kind in kinds if (table := getattr(one, kind, None))]
    before = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, before, strict=True):
            table.update(hooks)


def _call(parameters: Sequence[nn.Parameter], kind: str, argument: Any = None) -> None:
    for parameter in parameters:
        for hook in (getattr(parameter, kind, None) or {}).values():
            hook(parameter if argument is None else argument(parameter))


def _around(run: Any) -> Functions:
    """Return functions that run B and W inside ``run(parameters, action)``."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        result: Grads = run(Graph.behind(outputs).parameters(), lambda: RIGHT.full(outputs, grads, inputs))
        return result

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        result: Grads = run(parameters, lambda: RIGHT.weight_pass(iter(parameters), groups, retain_graph))
        return result

    return Functions(full=full, weight_pass=weight_pass)


@fault("hooks.tensor.*", "hooks.post_accumulate.*")
def parameter_hooks_never() -> Target:
    """Gradients are written to .grad behind autograd's back: no hook on a parameter is called."""

    def run(parameters: Sequence[nn.Parameter], action: Any) -> Any:
        with _silent(parameters, _TENSOR, _POST):
            return action()

    return target(_around(run))


@fault("hooks.post_accumulate.*")
def post_accumulate_hooks_twice() -> Target:
    """Post-accumulate-gradient hooks are called by autograd, and once more by hand."""

    def run(parameters: Sequence[nn.Parameter], action: Any) -> Any:
        result = action()
        _call([parameter for parameter in parameters if parameter.grad is not None], _POST)
        return result

    return target(_around(run))


@fault("hooks.tensor.mlp-full", "hooks.tensor.mlp-split", "hooks.tensor_grad.*")
def parameters_in_two_halves() -> Target:
    """The parameter gradients are accumulated in two halves, and the hooks are called for each."""

    def in_halves(weights: list[nn.Parameter], groups: Context, retain_graph: bool) -> None:  # noqa: FBT001 (passed on)
        half = [
            {
                **group,
                "grads": [tuple(None if g is None else 0.5 * g for g in grads) for grads in group.get("grads", ())],
            }
            for group in groups
            if "grads" in group
        ]
        RIGHT.weight_pass(iter(weights), [dict(group) for group in half], retain_graph=True)
        RIGHT.weight_pass(iter(weights), half, retain_graph)
        for group in groups:
            group.clear()

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        parameters = Graph.behind(outputs).parameters()
        found, context = RIGHT.input_pass(*flat(outputs, grads), inputs, iter(parameters))
        in_halves(parameters, context, retain_graph=False)
        return found

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        in_halves(parameters, groups, retain_graph)
        return tuple(parameter.grad for parameter in parameters)

    return target(Functions(full=full, weight_pass=weight_pass))


@fault("hooks.post_accumulate_grad.*-split", "hooks.post_accumulate.*-split")
def post_accumulate_hooks_in_the_input_pass() -> Target:
    """Post-accumulate-gradient hooks are called in I, while the gradient comes in W."""

    def input_pass(
        outputs: Sequence[Any], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]
    ) -> tuple[Grads, Context]:
        parameters = list(weights)
        found = RIGHT.input_pass(outputs, grads, inputs, iter(parameters))
        _call([parameter for parameter in parameters if parameter.requires_grad], _POST)
        return found

    def weight_pass(weights: Iterator[nn.Parameter], groups: Context, retain_graph: bool = False) -> Grads:  # noqa: FBT001, FBT002 (torch's signature)
        parameters = list(weights)
        with _silent(parameters, _POST):
            return RIGHT.weight_pass(iter(parameters), groups, retain_graph)

    return target(Functions(input_pass=input_pass, weight_pass=weight_pass))


@fault("hooks.post_accumulate_grad.*")
def post_accumulate_hooks_before_the_gradient() -> Target:
    """Post-accumulate-gradient hooks are called before the gradient is added."""

    def run(parameters: Sequence[nn.Parameter], action: Any) -> Any:
        _call([parameter for parameter in parameters if parameter.requires_grad], _POST)
        with _silent(parameters, _POST):
            return action()

    return target(_around(run))


@fault("hooks.tensor_grad.*")
def tensor_hooks_given_the_sum() -> Target:
    """Hooks on parameters are given the accumulated gradient in place of the micro-batch's own."""

    def run(parameters: Sequence[nn.Parameter], action: Any) -> Any:
        with _silent(parameters, _TENSOR):
            result = action()
        _call([parameter for parameter in parameters if parameter.grad is not None], _TENSOR, lambda held: held.grad)
        return result

    return target(_around(run))


@fault("hooks.module.*", "hooks.module_at_all.*")
def modules_walked_around() -> Target:
    """The forward calls the modules without their backward hooks."""

    class Session(FunctionsSession):
        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            with _silent(list(self._stage.modules()), _TENSOR):
                return super().forward(mb, args, target)

    return with_session(Session)
