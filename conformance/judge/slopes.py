"""Whether what draws random numbers has the backward of its forward, on a device with a generator of its own.

Its numbers are not the CPU's, so no gradient can be held against another device's. But the same seed draws the same
again: along a direction the outputs change as the gradient says, or the backward is another function's.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.devices.device import device_of
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.driver import NO_LOG
from gradconform.drive.reference64 import widen
from gradconform.drive.watches import on_cpu
from gradconform.reference.autograd import pair_roots, run_backward
from gradconform.torch_releases.dispatch import Called
from gradconform.trees import as_tuple, leaves
from gradconform.trial.materials import Materials, stable_seed
from gradconform.trial.modes import OF_FORWARD, call_in

#: How far to go along a direction, in units of a tensor's root mean square, by the dtypes that are fine enough for it,
#: and how many times as far to see whether the slope depends on the step.
_STEPS = {torch.float32: 1e-3, torch.float64: 1e-6}
_FURTHER = 4.0
_DIRECTIONS = 5

#: How far the slope is from the gradient's at least in the median where another backward is at work, as a share of the
#: larger of the two; and the share of it that it may be on the CPU, where else the stage has jumps or kinks and tells
#: nothing, or from one step to another, where else the device rounds too coarsely to tell.
_ANOTHER, _SURE = 0.02, 0.1


def another_backward(here: Materials, cpu: Materials) -> Cause | None:
    """Return what draws on a device, and how far its backward is from its forward, where the CPU's is not.

    ``here`` and ``cpu`` are the materials of one trial; None also where its dtype is too coarse to tell.
    """
    if here.dtype not in _STEPS:
        return None
    for lane, case in enumerate(here.trial.stages):
        if "rng" not in case.traits or here.trial.loss_at(lane) or (here.trial.chain and lane):
            continue
        called = Called()
        apart, unsure = _medians(here, lane, called)
        if apart > _ANOTHER and unsure < _SURE * apart and max(_medians(cpu, lane)) < _SURE * apart:
            drawing = (one for one in called.operations if torch.Tag.nondeterministic_seeded in one.tags)
            names = tuple(dict.fromkeys(one.name().partition(".")[0] for one in drawing))
            return Cause(Mistake.OPERATION_DRAWS, names=names, factors=(apart,))
    return None


def _medians(materials: Materials, lane: int, log: Called | None = None) -> tuple[float, float]:
    """Return how far slopes are from the gradient, and from each other with another step, in the median."""
    found = list(_slopes(materials, lane, log))
    apart = statistics.median(_apart(slope, told) for slope, told, _ in found)
    return apart, statistics.median(_apart(slope, longer) for slope, _, longer in found)


def _apart(slope: float, told: float) -> float:
    return abs(slope - told) / max(abs(slope), abs(told), 1e-30)


def _slopes(materials: Materials, lane: int, log: Called | None) -> Iterator[tuple[float, float, float]]:
    """Yield, per direction, how the outputs change along it, what the gradient says of that, and a longer step."""
    stage = materials.stage(lane)
    args = materials.args(lane, 0, stage)
    with log or NO_LOG:
        outputs = _forward(materials, stage, args)
    trained = _trained(args, stage)
    found = run_backward(*pair_roots(outputs, materials.output_grads(lane, 0)), trained)
    gradients = [None if (grad := found.get(id(one))) is None else _wide(grad) for one in trained]
    step = _STEPS[materials.dtype]
    for number in range(_DIRECTIONS):
        generator = torch.Generator().manual_seed(stable_seed(materials.seed, "direction", number))
        along = [_direction(one, generator) for one in trained]
        told = sum(float((grad * by).sum()) for grad, by in zip(gradients, along, strict=True) if grad is not None)
        yield _slope(materials, lane, along, step), told, _slope(materials, lane, along, _FURTHER * step)


def _slope(materials: Materials, lane: int, along: list[Tensor], step: float) -> float:
    ahead, behind = (_value(materials, lane, along, sign * step) for sign in (1.0, -1.0))
    return (ahead - behind) / (2 * step)


def _value(materials: Materials, lane: int, along: list[Tensor], step: float) -> float:
    """Return the outputs times their gradients, all leaves moved so far along a direction."""
    stage = materials.stage(lane)
    args = materials.args(lane, 0, stage)
    with torch.no_grad():
        for leaf, by in zip(_trained(args, stage), along, strict=True):
            leaf.add_((step * by).to(leaf.dtype).to(leaf.device))
        outputs = _forward(materials, stage, args)
    given = dict(leaves(materials.output_grads(lane, 0)))
    pairs = [(one, given[path]) for path, one in leaves(outputs) if given[path] is not None]
    return sum(float((_wide(one) * _wide(grad)).sum()) for one, grad in pairs)


def _forward(materials: Materials, stage: nn.Module, args: tuple[Any, ...]) -> Any:
    device = device_of(materials.device)
    with device.generators_kept():
        device.seed(materials.rng_seed(0))
        return as_tuple(call_in(materials.trial.modes & OF_FORWARD, "F", materials.device, lambda: stage(*args)))


def _trained(args: tuple[Any, ...], stage: nn.Module) -> list[Tensor]:
    """Return the leaves that have a gradient, each once."""
    every = [*(one for one in args if isinstance(one, Tensor)), *stage.parameters()]
    return list({id(one): one for one in every if one.requires_grad}.values())


def _wide(tensor: Tensor) -> Tensor:
    wide: Tensor = widen(on_cpu(tensor))
    wide = wide if wide.layout == torch.strided else wide.to_dense()
    return wide.real if wide.is_complex() else wide


def _direction(leaf: Tensor, generator: torch.Generator) -> Tensor:
    """Return a direction, of the size of the leaf's own values."""
    own = _wide(leaf)
    size = float(own.square().mean().sqrt()) if own.numel() else 0.0
    return torch.randn(own.shape, generator=generator, dtype=torch.float64) * (size or 1.0)
