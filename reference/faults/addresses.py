"""Faults that depend on addresses or on the order of a set: right most of the time."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from gradconform.targets import Target

from .alterations import param_grads, target
from .graph import Graph
from .registry import fault

# Addresses differ from process to process, and a test must not: these draw in their place, from a seed.


@fault("repeat.graph_builds.*", cause="counted twice")
def wrong_in_one_of_five_graph_builds() -> Target:
    """In one of five graph builds a parameter is counted twice."""
    drawn = random.Random(5)  # noqa: S311 (a repeatable stand-in for addresses)

    def edit(_: nn.Parameter, added: Tensor, __: Graph) -> Tensor:
        return added * (2.0 if drawn.random() < 0.2 else 1.0)

    return target(param_grads(edit))


@fault("repeat.bit_equal.*")
def sums_in_the_order_of_a_set() -> Target:
    """The last bit of a gradient depends on the order in which its parts were added."""
    drawn = random.Random(5)  # noqa: S311 (a repeatable stand-in for addresses)

    def edit(_: nn.Parameter, added: Tensor, __: Graph) -> Tensor:
        return added * (1.0 + torch.finfo(added.dtype).eps) if drawn.random() < 0.5 else added

    return target(param_grads(edit))


@fault(
    "repeat.graph_builds.tied-adjacent",
    "repeat.graph_builds.looped-block",
    "repeat.graph_builds.tied-apart",
    cause="scaled by 0.5|0.5 × ",
)
def tied_weight_wrong_in_some_graph_builds() -> Target:
    """A tied weight is halved in one of five graphs, as where a set of nodes is walked in the order of addresses."""
    drawn = random.Random(7)  # noqa: S311 (a repeatable stand-in for addresses)

    def edit(parameter: nn.Parameter, added: Tensor, graph: Graph) -> Tensor:
        return added * (0.5 if len(graph.users_of(parameter)) > 1 and drawn.random() < 0.2 else 1.0)

    return target(param_grads(edit))
