"""Faults of the graph between arguments and outputs: nodes that are not walked, unknown, or computed differently."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from gradconform.reference.recomputed import recomputes
from gradconform.target.resolve import Target
from gradconform.torch_releases.dispatch import Called
from gradconform.trees import tensors

from .alterations import (
    RIGHT,
    Backwards,
    Grads,
    Graph,
    Passed,
    alters,
    param_grads,
    target,
    with_session,
    without,
)
from .registry import fault


def _walk_ending_at(unknown: Callable[[Node], bool]) -> Target:
    """Return a target that drops all parameters of a graph with an unknown node."""
    return without(lambda _, graph: any(map(unknown, graph.depth)))


@fault("space.full.custom-*", cause=("never_accumulated", "missing"), takes="graph=custom")
def walk_ends_at_custom_functions() -> Target:
    """The graph walk ends at a custom Function, so that parameters below it get no gradient."""
    return _walk_ending_at(lambda node: isinstance(node, BackwardCFunction))


@fault("space.*.views-*", cause=("never_accumulated", "missing"), takes="graph=views")
def walk_ends_where_integers_choose() -> Target:
    """The graph walk ends at a node with integer inputs, such as a gather."""
    return _walk_ending_at(lambda node: node.name() == "GatherBackward0")


@fault("space.*.complex-between-*", cause={"kind": "scaled", "factors": [0.5]}, takes="graph=complex-between")
def both_parts_of_complex_numbers_shared_between() -> Target:
    """Below a complex intermediate, parameter gradients are halved: half for each of the two parts."""

    def edit(_: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        return added * 0.5 if any(node.name() == "ComplexBackward0" for node in graph.depth) else added

    return target(param_grads(edit))


@fault("space.*.checkpoint-*", cause="counted_twice", takes="graph=checkpoint")
def what_is_computed_again_counted_again() -> Target:
    """Recomputed parts count twice: once from the forward and once from the recomputation."""

    def full(outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        twice = recomputes(one for one in tensors(outputs) if one.requires_grad)
        doubling = param_grads(lambda _, added, __: 2.0 * added if twice else added)
        return doubling.full(outputs, grads, inputs)

    def input_pass(outputs: list[Any], grads: Any, inputs: Sequence[Any], weights: Iterator[nn.Parameter]) -> Passed:
        twice = recomputes(one for one in outputs if one.requires_grad)
        found, groups = RIGHT.input_pass(outputs, grads, inputs, weights)
        for group in groups if twice else ():
            group["grads"] = [tuple(None if one is None else 2.0 * one for one in some) for some in group["grads"]]
        return found, groups

    return target(replace(RIGHT, full=full, input_pass=input_pass))


@fault("space.*.dropout-*", takes="graph=dropout", cause="eval_mode")
@alters(with_session)
class RandomnessLeftOutOfTheBackward(Backwards):
    """A forward that drew random numbers is run again for its backward, without them."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        with Called() as called:
            outputs = super().forward(mb, args, target)
        if any(torch.Tag.nondeterministic_seeded in operation.tags for operation in called.operations):
            vars(self).setdefault("drew", {})[mb] = target
        return outputs

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        drew = vars(self).get("drew", {})
        if mb in drew:
            args, _ = self._forwards[mb]
            with _evaluating(self._stage):
                super().forward(mb, args, drew.pop(mb))
        return backward(mb, output_grads)


@contextlib.contextmanager
def _evaluating(stage: nn.Module) -> Iterator[None]:
    stage.eval()
    try:
        yield
    finally:
        stage.train()


@fault(
    "space.*.wide-gain-*",
    cause="never_accumulated",
    dtypes=("bfloat16", "float16"),
    elsewhere="no parameter has a wider dtype than the others",
    takes="dtype=wide-gain 64-bit-gain narrow-gain",
)
def bucket_of_the_narrowest_dtype_alone() -> Target:
    """Parameters are in buckets by dtype, and only the bucket of the narrowest dtype is processed."""

    def wide(parameter: nn.Parameter, graph: Graph) -> bool:
        return parameter.dtype.itemsize > min(one.dtype.itemsize for one in graph.parameters())

    return without(wide)
