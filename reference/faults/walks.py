"""Faults of walks: the walk of one graph is used for a different one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from gradconform.adapter import StageSpec
from gradconform.reference import split as by_uses
from gradconform.reference.graph_shape import Kind, Shape
from gradconform.reference.use_plan import UsePlan, plan_of
from gradconform.target.functions import FunctionsSession
from gradconform.target.resolve import Target

from .alterations import BY_USES, Context, Functions, Passed, per_session, with_session
from .registry import fault


def _with_plans_by(key: Callable[[Shape], Hashable], plans: dict[Hashable, UsePlan]) -> Functions:
    """Return functions that cache plans by ``key`` and use the first one of each key."""

    def look_up(shape: Shape) -> UsePlan:
        return plans.setdefault(key(shape), plan_of(shape))

    def input_pass(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]) -> Passed:
        return by_uses.stage_backward_input(outputs, grads, inputs, weights, look_up=look_up)

    return replace(BY_USES, input_pass=input_pass)


@fault("steps.frozen.between-split", raises=True)
def walk_of_the_first_graph_kept() -> Target:
    """The walk of a stage's first graph is used for all its graphs, even if they changed."""
    return per_session(lambda _: _with_plans_by(lambda _: None, {}))


@fault("steps.frozen.in-flight-split", cause=("missing", "never_accumulated"))
def walk_kept_for_other_trained_parameters() -> Target:
    """The cached walk of a graph is found by nodes and edges, not by which parameters are trained."""

    def key(shape: Shape) -> Hashable:
        kinds = (replace(one, trained=None) if isinstance(one, Kind) else one for one in shape.code)
        return tuple(repr(one) for one in kinds), shape.roots, shape.inputs

    return per_session(lambda _: _with_plans_by(key, {}))


@fault("steps.opened_late.split", raises=True)
def walk_looked_up_by_the_number_of_parameters() -> Target:
    """The cached walk of a graph, kept while a session is open, is found by its number of parameters alone."""
    plans: dict[Hashable, UsePlan] = {}
    opened: list[FunctionsSession] = []

    class Session(FunctionsSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            opened.append(self)

        def close(self) -> None:
            super().close()
            opened.remove(self)
            if not opened:
                plans.clear()

    def key(shape: Shape) -> Hashable:
        return sum(isinstance(one, Kind) and bool(one.trained) for one in shape.code)

    return with_session(Session, _with_plans_by(key, plans))


@fault("steps.params.rebind-split", cause=("never_accumulated", "missing"))
def parameters_of_the_first_graph_kept() -> Target:
    """The parameters of W are determined once per stage, even if others replace them later."""

    def make(_: StageSpec) -> Functions:
        first: list[list[Any]] = []

        def input_pass(outputs: Any, grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]) -> Passed:
            context: Context
            found, context = by_uses.stage_backward_input(outputs, grads, inputs, weights)
            first.extend([group["params"] for group in context] if not first else ())
            if [len(group["params"]) for group in context] == [len(params) for params in first]:
                for group, params in zip(context, first, strict=True):
                    group["params"] = params
            return found, context

        return replace(BY_USES, input_pass=input_pass)

    return per_session(make)
