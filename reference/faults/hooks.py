"""Faults of hooks: called too often, never, too early, or with another value than the gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target
from gradconform.trees import tensors

from .alterations import (
    BY_USES,
    RIGHT,
    Context,
    Grads,
    Graph,
    Passed,
    accumulating,
    alters,
    backwards,
    edited,
    flat,
    input_passes,
    replaces,
    stored_as,
    target,
    weight_passes,
    with_session,
)
from .registry import fault

Hook = Callable[[Tensor], Tensor]

_PUT: Any = Tensor.register_hook
_TENSOR, _POST = "_backward_hooks", "_post_accumulate_grad_hooks"


@contextlib.contextmanager
def _silent(held: Sequence[Any], *kinds: str) -> Iterator[None]:
    """Remove the hooks of parameters or modules, and restore them at the end."""
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


@fault("hooks.altered.move-*", "hooks.post_accumulate.*", cause="moved_by_hook")
def post_accumulate_hooks_never() -> Target:
    """Gradients are added to .grad directly, so that no post-accumulate-gradient hook is called."""
    return target(accumulating(lambda parameters, _: _silent(parameters, _POST)))


@fault("hooks.tensor.*", "hooks.post_accumulate.*")
def parameter_hooks_never() -> Target:
    """Gradients are written to .grad without autograd: no hook on a parameter is called."""
    return target(accumulating(lambda parameters, _: _silent(parameters, _TENSOR, _POST)))


@fault("hooks.post_accumulate.*")
def post_accumulate_hooks_twice() -> Target:
    """Post-accumulate-gradient hooks are called by autograd and a second time by the implementation."""
    return stored_as(lambda parameters: _call([one for one in parameters if one.grad is not None], _POST))


@fault("hooks.tensor.mlp-*", "hooks.tensor_grad.*", "hooks.altered.clip-*", cause="hook_on_parts")
def parameters_in_two_halves() -> Target:
    """Parameter gradients are accumulated in two halves, and the hooks are called for each."""

    def in_halves(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        half = [
            {**group, "grads": [tuple(None if g is None else 0.5 * g for g in grads) for grads in group["grads"]]}
            for group in groups
            if "grads" in group
        ]
        run(parameters, [dict(group) for group in half], retain=True)
        run(parameters, half)
        for group in groups:
            group.clear()

    halving = weight_passes(in_halves)

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        parameters = Graph.behind(outputs).parameters()
        found, context = RIGHT.input_pass(*flat(outputs, grads), inputs, iter(parameters))
        halving.weight_pass(iter(parameters), context)
        return found

    return target(replace(halving, full=full))


@fault("hooks.altered.clip-*-split", cause="hook_on_parts")
def uses_accumulated_apart() -> Target:
    """W accumulates the uses of a tied parameter one after the other, so a hook gets the gradient of one use."""

    def by_use(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        most = max((len(group["grads"]) for group in groups if "grads" in group), default=0)
        for number in range(most):
            part = [
                {
                    **group,
                    "grads": [
                        tuple(g if g is None or place == number else torch.zeros_like(g) for g in grads)
                        for place, grads in enumerate(group["grads"])
                    ],
                }
                for group in groups
                if number < len(group.get("grads", ()))
            ]
            run(parameters, part, retain=True)
        for group in groups:
            group.clear()

    return target(weight_passes(by_use, BY_USES))


@fault("hooks.post_accumulate_grad.*-split", "hooks.post_accumulate.*-split")
def post_accumulate_hooks_in_the_input_pass() -> Target:
    """Post-accumulate-gradient hooks are called in I, but the gradient is added in W."""

    def calling(run: Callable[[], Passed], _: Any, parameters: list[nn.Parameter]) -> Passed:
        found = run()
        _call([parameter for parameter in parameters if parameter.requires_grad], _POST)
        return found

    def around(run: Callable[..., Grads], parameters: list[nn.Parameter], groups: Context) -> None:
        with _silent(parameters, _POST):
            run(parameters, groups)

    return target(weight_passes(around, input_passes(calling)))


@fault("hooks.post_accumulate_grad.*")
@alters(accumulating)
@contextlib.contextmanager
def post_accumulate_hooks_before_the_gradient(parameters: Sequence[nn.Parameter], _: Graph) -> Iterator[None]:
    """Post-accumulate-gradient hooks are called before the gradient is added."""
    _call([parameter for parameter in parameters if parameter.requires_grad], _POST)
    with _silent(parameters, _POST):
        yield


@fault("hooks.tensor_grad.*", takes="hooks=scaled-by-hooks")
@alters(accumulating)
@contextlib.contextmanager
def tensor_hooks_given_the_sum(parameters: Sequence[nn.Parameter], _: Graph) -> Iterator[None]:
    """Hooks on parameters receive the accumulated gradient instead of the micro-batch's own."""
    with _silent(parameters, _TENSOR):
        yield
    _call([parameter for parameter in parameters if parameter.grad is not None], _TENSOR, lambda held: held.grad)


class _HooksChanged(TorchFunctionMode):
    """A context that registers another hook on a tensor than the requested one."""

    def __init__(self, change: Callable[[Hook], Hook]) -> None:
        super().__init__()
        self._change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is _PUT:
            tensor, hook = args
            return func(tensor, self._change(hook))
        return func(*args, **(kwargs or {}))


def _hooks_of_the_forward(change: Callable[[Hook], Hook]) -> Target:
    """Return a target whose forward registers other hooks on activations."""

    class Session(FunctionsSession):
        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            with _HooksChanged(change):
                return super().forward(mb, args, target)

    return with_session(Session)


@fault("*.gradients.activation-hook", "*.gradients.linear-hook", cause={"kind": "hook_twice", "factors": [0.5]})
@alters(_hooks_of_the_forward)
def activation_hooks_twice(hook: Hook) -> Hook:
    """A hook on an activation is applied a second time, to its own result."""
    return lambda grad: hook(hook(grad))


@fault("*.gradients.activation-hook", "*.gradients.linear-hook", cause={"kind": "hook_never", "factors": [0.5]})
@alters(_hooks_of_the_forward)
def activation_hooks_never(_: Hook) -> Hook:
    """A hook on an activation is removed before the backward."""
    return lambda grad: grad


@fault("hooks.altered.scale-*", cause={"kind": "hook_twice", "factors": [4.0]}, takes="hooks=scaled-by-hooks")
def tensor_hooks_applied_twice() -> Target:
    """Hooks on parameters change a gradient once in autograd and once more in the implementation."""

    @contextlib.contextmanager
    def applying(parameters: Sequence[nn.Parameter], graph: Graph) -> Iterator[None]:
        tables = {one: list((one._backward_hooks or {}).values()) for one in parameters}

        def again(parameter: nn.Parameter, grad: Tensor, _: Graph) -> Tensor:
            for hook in tables[parameter]:
                changed = hook(grad)
                grad = grad if changed is None else changed
            return grad

        with edited(parameters, graph, again):
            yield

    return target(accumulating(applying))


@fault("hooks.value.output-hook-*", cause="hook_never")
def hooks_on_outputs_never() -> Target:
    """B and I disable the hooks on the outputs that they start from."""

    def around(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        with _silent(tensors(outputs), _TENSOR):
            return run(outputs, grads, inputs)

    return target(backwards(around))


@fault("hooks.own.*")
@replaces("full")
def one_backward_per_output(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
    """B runs one backward per output, and adds up the input gradients."""
    listed, given = flat(outputs, grads)
    if not isinstance(given, list) or len(listed) < 2:
        return RIGHT.full(outputs, grads, inputs)
    parameters = Graph.behind(outputs).parameters()
    sums: list[Tensor | None] = [None] * len(inputs)
    for number, (output, grad) in enumerate(zip(listed, given, strict=True)):
        if isinstance(output, Tensor) and output.requires_grad and grad is not None:
            found, context = RIGHT.input_pass([output], [grad], inputs, iter(parameters))
            RIGHT.weight_pass(iter(parameters), context, number < len(listed) - 1)
            sums = [
                got if held is None else held if got is None else held + got
                for held, got in zip(sums, found, strict=True)
            ]
    return tuple(sums)


@fault("hooks.module.*", "hooks.module_at_all.*", "hooks.value.module-hooks-*", cause="module_hooks_never")
@alters(with_session)
class ModulesWalkedAround(FunctionsSession):
    """The forward calls the modules without their backward hooks."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        with _silent(list(self._stage.modules()), _TENSOR):
            return super().forward(mb, args, target)
