"""Checks the backward of random operations against their forward, on a device with its own generator.

Its numbers are not the CPU's, so no gradient can be compared with another device's. But the same seed draws the same
numbers again. Along a direction the outputs must change as the gradient says; otherwise the backward belongs to another
function.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.devices.device import device_of
from gradconform.devices.probe import OPERATIONS
from gradconform.devices.tensor_facts import are_one_memory, facts_withheld, without_repeats
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.driver import NO_LOG
from gradconform.drive.reference64 import widen
from gradconform.drive.watches import on_cpu
from gradconform.reference.autograd import pair_roots, run_backward
from gradconform.torch_releases.dispatch import Called
from gradconform.trees import as_tuple, leaves
from gradconform.trial.materials import Materials, stable_seed
from gradconform.trial.modes import OF_FORWARD, call_in

#: The distance along a direction, in units of a tensor's root mean square, by the dtypes that are fine enough for it,
#: and the factor of a longer step, to see whether the slope depends on the step.
_STEPS = {torch.float32: 1e-3, torch.float64: 1e-6}
_FURTHER = 4.0
_DIRECTIONS = 5
#: How many seeds the CPU draws its masks from.
_MASKS = 8

#: The first is the smallest median difference between slope and gradient that shows another backward, as a share of the
#: larger of the two. The second is the share of it that the CPU may have, since otherwise the stage has jumps or kinks.
#: It also limits the change from one step to another, since otherwise the device rounds too coarsely.
_ANOTHER, _SURE = 0.02, 0.1


def another_backward(here: Materials, cpu: Materials) -> Cause | None:
    """Return the random operation whose backward does not fit its forward on a device, though it does on the CPU.

    ``here`` and ``cpu`` are the materials of one trial. Also returns None if its dtype is too coarse to decide, or if
    the device's operations cannot be seen.
    """
    if here.dtype not in _STEPS or OPERATIONS in facts_withheld(here.device.type):
        return None
    for lane, case in enumerate(here.trial.stages):
        if "rng" not in case.traits or here.trial.loss_at(lane) or (here.trial.chain and lane):
            continue
        called = Called()
        difference, unsure = _medians(here, lane, called)
        if difference > _ANOTHER and unsure < _SURE * difference and _follows(cpu, lane, _SURE * difference):
            drawing = (one for one in called.operations if torch.Tag.nondeterministic_seeded in one.tags)
            names = tuple(dict.fromkeys(one.name().partition(".")[0] for one in drawing))
            return Cause(Mistake.OPERATION_DRAWS, names=names, factors=(difference,))
    return None


def _follows(cpu: Materials, lane: int, room: float) -> bool:
    """Return whether the CPU's slopes are within ``room`` of its gradient, for each of several masks.

    With one mask alone, the CPU may have dropped a part of the stage that this test cannot judge.
    """
    return all(
        max(_medians(Materials(cpu.trial, dtype=cpu.dtype, device=cpu.device, seed=seed), lane)) < room
        for seed in (cpu.given_seed, *range(1, _MASKS))
    )


def _medians(materials: Materials, lane: int, log: Called | None = None) -> tuple[float, float]:
    """Return the median differences of slopes from the gradient, and from slopes with another step.

    A direction is ignored if the forward and backward slopes differ as much as slope and gradient: a kink within the
    step explains both. With another mask than the CPU's, the stage may have a kink that it does not have on the CPU.
    Both are 0 where no direction can be tried.
    """
    found = list(_slopes(materials, lane, log))
    if not found:
        return 0.0, 0.0
    difference = statistics.median(
        0.0 if kink >= _distance(slope, reported) else _distance(slope, reported) for slope, reported, _, kink in found
    )
    return difference, statistics.median(_distance(slope, longer) for slope, _, longer, _ in found)


def _distance(slope: float, reported: float) -> float:
    return abs(slope - reported) / max(abs(slope), abs(reported), 1e-30)


def _slopes(materials: Materials, lane: int, log: Called | None) -> Iterator[tuple[float, float, float, float]]:
    """Yield, per direction, the slope of the outputs, the gradient's, that of a longer step, and the kink in between.

    The kink is the difference of the slopes forward and backward. Directions along which the stage raises are left out.
    """
    stage = materials.stage(lane)
    args = materials.args(lane, 0, stage)
    trained = _trained(args, stage)  # before the forward: it may write, which a backward refuses afterwards
    with log or NO_LOG:
        outputs = _forward(materials, stage, args)
    found = run_backward(
        *pair_roots(outputs, materials.output_grads(lane, 0)), [one for each in trained for one in each]
    )
    gradients = [[_wide(grad) for one in each if (grad := found.get(id(one))) is not None] for each in trained]
    step = _STEPS[materials.dtype]
    for number in range(_DIRECTIONS):
        generator = torch.Generator().manual_seed(stable_seed(materials.seed, "direction", number))
        along = [_direction(first, generator) for first, *_ in trained]
        reported = sum(
            float((grad * by).sum()) for several, by in zip(gradients, along, strict=True) for grad in several
        )
        distances = (0.0, step, -step, _FURTHER * step, -_FURTHER * step)
        try:
            here, ahead, behind, further, back = [_value(materials, lane, along, one) for one in distances]
        except (RuntimeError, ValueError):  # out of what the operation accepts: a deviation below zero, for example
            continue
        slope, longer = (ahead - behind) / (2 * step), (further - back) / (2 * _FURTHER * step)
        yield slope, reported, longer, _distance((ahead - here) / step, (here - behind) / step)


def _value(materials: Materials, lane: int, along: list[Tensor], step: float) -> float:
    """Return the outputs times their gradients, with all leaves moved by ``step`` along a direction."""
    stage = materials.stage(lane)
    args = materials.args(lane, 0, stage)
    with torch.no_grad():
        for (leaf, *_), by in zip(_trained(args, stage), along, strict=True):
            moved = without_repeats(step * by, like=leaf).to(leaf.dtype).to(leaf.device)
            without_repeats(leaf).add_(moved)
        outputs = _forward(materials, stage, args)
    given = dict(leaves(materials.output_grads(lane, 0)))
    pairs = [(one, given[path]) for path, one in leaves(outputs) if given[path] is not None]
    return sum(float((_wide(one) * _wide(grad)).sum()) for one, grad in pairs)


def _forward(materials: Materials, stage: nn.Module, args: tuple[Any, ...]) -> Any:
    device = device_of(materials.device)
    with device.generators_kept():
        device.seed(materials.rng_seed(0))
        return as_tuple(call_in(materials.trial.modes & OF_FORWARD, "F", materials.device, lambda: stage(*args)))


def _trained(args: tuple[Any, ...], stage: nn.Module) -> list[list[Tensor]]:
    """Return the leaves that have a gradient, each once; leaves that share memory are grouped.

    A step moves all leaves of a group.
    """
    every = [*(one for one in args if isinstance(one, Tensor)), *stage.parameters()]
    groups: list[list[Tensor]] = []
    for one in {id(one): one for one in every if one.requires_grad}.values():
        own = next((group for group in groups if are_one_memory(group[0], one)), None)
        if own is None:
            groups.append([one])
        else:
            own.append(one)
    return groups


def _wide(tensor: Tensor) -> Tensor:
    wide: Tensor = widen(on_cpu(tensor))
    wide = wide if wide.layout == torch.strided else wide.to_dense()
    return wide.real if wide.is_complex() else wide


def _direction(leaf: Tensor, generator: torch.Generator) -> Tensor:
    """Return a direction, of the size of the leaf's own values; elements at one address move together."""
    own = _wide(leaf)
    size = float(own.square().mean().sqrt()) if own.numel() else 0.0
    drawn = torch.randn(own.shape, generator=generator, dtype=torch.float64)
    return without_repeats(drawn, like=leaf).expand(own.shape) * (size or 1.0)
