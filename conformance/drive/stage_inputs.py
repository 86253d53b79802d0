"""The inputs of a stage: arguments of F, and output gradients of B and I."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from gradconform.reference.autograd import leaf_of
from gradconform.trees import Tree, as_tuple
from gradconform.trial.materials import Materials
from gradconform.trial.program import Action

from .lane import Lane
from .receive_buffers import tracked

#: The stages of a trial by number.
Lanes = Mapping[int, Lane]


def args_of(lanes: Lanes, lane: Lane, mb: int, materials: Materials) -> tuple[Any, ...]:
    """Return the arguments of F: materials, or in a chain the previous stage's outputs as new leaves."""
    trial = materials.trial
    if trial.chain and lane.index:
        return tuple(map(leaf_of, as_tuple(lanes[lane.index - 1].outputs[mb])))
    if trial.same_args and lane.args:
        return next(iter(lane.args.values()))
    args = materials.args(lane.index, mb, lane.stage)
    if lane.upstream:
        return lane.upstream.args(mb, args)
    if trial.received == "inputs":
        received: tuple[Any, ...] = lane.received.received(mb, args)
        return received
    return args


def grads_of(lanes: Lanes, lane: Lane, action: Action, materials: Materials) -> Tree:
    """Return the output gradients of B and I: materials, or in a chain the input gradients of the next stage."""
    trial = materials.trial
    if lane.has_loss:
        return None
    if trial.chain and lane.index < len(trial.stages) - 1:
        behind = lanes[lane.index + 1].returned.pop(action.mb)
        return tuple(grad.detach() if isinstance(grad, Tensor) else grad for grad in behind)
    if lane.one_grad is not None:
        return lane.one_grad
    grads = materials.output_grads(lane.index, action.mb, misuse=action.misuse)
    if trial.tracked_grads:
        tracked(grads)
    lane.one_grad = grads if trial.received == "once" else None
    return lane.received.received(action.mb, grads) if trial.received == "grads" else grads
