"""The caller's actions between the calls of a session: gradients zeroed, hooks added, tensors dropped."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.trees import tensors

from .lane import Lane
from .stage_changes import CHANGES, into_bucket, rebind_parameters, write_over
from .watches import HookWatch


def _zero(lane: Lane, mb: int, *, set_to_none: bool) -> None:
    del mb
    lane.zero_grads(set_to_none=set_to_none)


def _drop(lane: Lane, mb: int) -> None:
    lane.let_go(mb)


def _receive(lane: Lane, mb: int) -> None:
    for grad in tensors(lane.output_grads[mb]):
        write_over(grad)


def _write(lane: Lane, mb: int) -> None:
    _double(tensors(lane.outputs[mb]))


def _refill(lane: Lane, mb: int) -> None:
    _double(arg for arg in lane.args[mb] if isinstance(arg, Tensor) and not isinstance(arg, nn.Parameter))


def _double(written: Iterable[Tensor]) -> None:
    """Double floating-point tensors in place, as their owner may: autograd counts the write, and records none."""
    with torch.no_grad():
        for tensor in written:
            if tensor.is_floating_point():
                tensor.mul_(2.0)


def _into_buffer(lane: Lane, mb: int) -> None:
    del mb
    into_bucket(lane.stage)
    lane.buffer = {n: p.grad for n, p in lane.stage.named_parameters() if p.requires_grad and p.grad is not None}


def _zero_buffer(lane: Lane, mb: int) -> None:
    del mb
    for part in lane.buffer.values():
        part.zero_()


def _hook(lane: Lane, mb: int) -> None:
    del mb
    lane.hooks = HookWatch(lane.stage, modules=False)


def _unhook(lane: Lane, mb: int) -> None:
    del mb
    if lane.hooks is not None:
        lane.hooks.remove()
        lane.hooks = None


def _set_frozen(lane: Lane, index: int, *, frozen: bool) -> None:
    list(lane.stage.parameters())[index].requires_grad_(not frozen)


def evaluate(stage: nn.Module, args: Iterable[Any]) -> None:
    """Run a stage in evaluation mode and without gradients, as its caller does between steps; its mode is restored."""
    training = stage.training
    stage.eval()
    with torch.no_grad():
        stage(*args)
    stage.train(training)


def _change(lane: Lane, mb: int, *, change: Callable[[nn.Module], None]) -> None:
    del mb
    change(lane.stage)


def _rebind(lane: Lane, mb: int) -> None:
    del mb
    lane.clear_grads_outside_parameters()  # gradients kept elsewhere by name would outlive the parameter
    rebind_parameters(lane.stage)


def _collect(lane: Lane, mb: int) -> None:
    del lane, mb
    gc.collect(1)  # a trial's objects are young; a full collection takes a quarter of a second


#: By the word of a program; each receives the stage's lane and the number after the word.
CALLER_ACTS: dict[str, Callable[[Lane, int], None]] = {
    "zero_none": partial(_zero, set_to_none=True),
    "zero_fill": partial(_zero, set_to_none=False),
    "drop": _drop,
    "zero_buffer": _zero_buffer,
    "buffer": _into_buffer,
    "write": _write,
    "refill": _refill,
    "receive": _receive,
    "hook": _hook,
    "unhook": _unhook,
    "freeze": partial(_set_frozen, frozen=True),
    "unfreeze": partial(_set_frozen, frozen=False),
    **{kind: partial(_change, change=change) for kind, change in CHANGES.items()},
    "rebind": _rebind,
    "collect": _collect,
}
