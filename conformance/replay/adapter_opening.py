"""The opening of an adapter in a replay script, and the time at which early or late gradients are due.

A script defines the names below itself, as gradconform.replay.standalone describes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec
from gradconform.trees import as_tuple, flattened, map_leaves
from gradconform.trial.materials import mean_squares

if TYPE_CHECKING:
    CHAIN = LOSS = EARLY = LATE = REPEATS_WEIGHT = RETAIN_GRAPH = RELEASES_OUTPUTS = False
    MICROBATCHES: list[int]
    RETAINED: tuple[int, ...]
    STAGES: list[Callable[[], nn.Module]]
    ARGS: dict[tuple[int, Any], Callable[[nn.Module], tuple[Any, ...]]]
    TARGETS: dict[Any, Callable[[], Any]]


def bare(leaf: Any) -> Any:
    """Return a tensor of the same shape, dtype and ``requires_grad`` without a graph."""
    return torch.zeros_like(leaf).detach().requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf


def example(number: int) -> tuple[tuple[Any, ...], Any]:
    """Return arguments and outputs of a stage, for their shapes and dtypes."""
    stage = STAGES[number]()
    if CHAIN and number:
        args = as_tuple(example(number - 1)[1])
    else:
        args = next(make(stage) for (lane, _), make in ARGS.items() if lane == number)
    with torch.random.fork_rng(devices=[]):
        outputs = map_leaves(bare, stage(*args))
    return tuple(map(bare, args)), outputs


def spec_of(number: int) -> StageSpec:
    """Return the stage's description for an adapter."""
    args, outputs = example(number)
    last = LOSS and (not CHAIN or number == len(STAGES) - 1)
    return StageSpec(
        is_first=CHAIN and number == 0,
        is_last=last,
        n_microbatches=MICROBATCHES[number],
        loss_fn=mean_squares if last else None,
        example_args=args,
        example_outputs=outputs,
        example_target=next(make() for (lane, _), make in TARGETS.items() if lane == number) if last else None,
        args_require_grad=tuple(isinstance(arg, Tensor) and arg.requires_grad for arg in args),
        repeats_weight=REPEATS_WEIGHT,
        retain_graph=RETAIN_GRAPH,
        retained=RETAINED or (),
        releases_outputs=RELEASES_OUTPUTS,
    )


def shaped(grads: Any, number: int) -> Any:
    """Return output gradients in the structure of a stage's outputs: named tuples have no source text."""
    values = iter(flattened(grads))
    return map_leaves(lambda _: next(values), as_tuple(example(number)[1]))


def made(found: Any) -> Any:
    """Return the adapter that a class or a factory creates."""
    return found() if isinstance(found, type) or not hasattr(found, "open") else found


def not_due(steps: list[dict[str, Any]], lane: int) -> bool:
    """Return whether some parameter gradients may have arrived already, or are left to a finish."""
    acts = [step["token"].lstrip("0123456789") for step in steps if step["lane"] == lane and not step["misuse"]]
    if EARLY and Counter(act[1:] for act in acts if act[0] == "I") != Counter(act[1:] for act in acts if act[0] == "W"):
        return True
    flushed = max((place for place, act in enumerate(acts) if act[:6] == "finish"), default=-1)
    return LATE and any(act[0] == "W" for act in acts[flushed + 1 :])
