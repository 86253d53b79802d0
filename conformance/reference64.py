"""reference64: plain autograd in float64 on the CPU, from the same rounded parameters, inputs and output gradients.

One gradient per micro-batch; what stands after an action is their sum, taken in float64. The stages of a chain are one
model here: one forward through all of them, and one backward. The same in the trial's own dtype is what a chain is held
against.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.devices.device import device_of
from gradconform.fixtures.inputs import place_arguments
from gradconform.fixtures.trees import Tree, as_tuple, leaves, map_leaves
from gradconform.materials import Materials, mean_squares
from gradconform.program import frozen_at
from gradconform.reference.autograd import pair_roots
from gradconform.tolerance import Partials
from gradconform.watch import on_cpu

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MicrobatchGrads:
    """What one micro-batch gives on one stage: one gradient per argument, one per parameter name; None for none.

    ``outputs`` has the leaves of the stage's outputs; ``loss`` is what the loss function gave, before any scale.
    """

    inputs: tuple[Tensor | None, ...]
    params: dict[str, Tensor | None]
    outputs: tuple[Any, ...] = ()
    loss: Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Passed:
    """One stage after its forward: what its gradients are taken of, and what they are compared with."""

    stage: nn.Module
    args: tuple[Any, ...]
    outputs: Tree


@dataclass(frozen=True, slots=True)
class _Forward:
    """One micro-batch after its forward, by stage, and where its backward starts."""

    passed: dict[int, _Passed]
    roots: list[Tensor]
    grads: list[Tensor | None]
    loss: Tensor | None


def microbatch_grads(
    materials: Materials, lane: int, mb: int, loss_scale: float, *, wide: bool = True
) -> dict[int, MicrobatchGrads]:
    """Return what one micro-batch of ``materials`` gives: on stage ``lane``, in a chain on every stage.

    In float64 where ``wide``, else in the trial's dtype and computed on its device; what is returned lies on the CPU.
    """
    forward = _forward(materials, lane, mb, loss_scale, wide=wide)
    sought = {
        id(tensor): tensor
        for passed in forward.passed.values()
        for tensor in (*passed.args, *passed.stage.parameters())
        if isinstance(tensor, Tensor) and tensor.requires_grad
    }
    found: list[Tensor | None] = [None] * len(sought)
    if forward.roots and sought:
        found = list(torch.autograd.grad(forward.roots, list(sought.values()), forward.grads, allow_unused=True))
        found = found if wide or materials.device.type == "cpu" else list(map(on_cpu, found))
    grads = dict(zip(sought, found, strict=True))
    last = max(forward.passed)
    return {
        index: MicrobatchGrads(
            tuple(grads.get(id(arg)) for arg in passed.args),
            {name: grads.get(id(parameter)) for name, parameter in passed.stage.named_parameters()},
            tuple(map(on_cpu, dict(leaves(as_tuple(passed.outputs))).values())),
            on_cpu(forward.loss) if index == last else None,
        )
        for index, passed in forward.passed.items()
    }


def widen(value: Any) -> Any:
    """Return a floating or complex tensor in float64 or complex128 on the CPU; anything else as it is."""
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        wide = torch.complex128 if value.is_complex() else torch.float64
        return value.detach().cpu().to(wide)
    return value


def widened(stage: nn.Module) -> nn.Module:
    """Turn ``stage`` into its float64 form, in place."""
    for tensor in (*stage.parameters(), *stage.buffers()):
        tensor.data = widen(tensor)
    return stage


def passed64(materials: Materials, lane: int, mb: int, *, training: bool) -> tuple[nn.Module, tuple[Any, ...], Tree]:
    """Return one stage after its forward in float64: the module, its arguments, which are leaves, and its outputs.

    In a chain the stages before are run as well. ``training`` is the mode that the stage is in.
    """
    trial = materials.trial
    handed: tuple[Any, ...] | None = None
    device = device_of(_CPU)
    for index in range(0 if trial.chain else lane, lane + 1):
        stage = _frozen(materials, index, mb, wide=True)
        stage.train(stage.training and (training or index != lane))
        args = _args(materials, index, mb, stage, wide=True) if handed is None else handed
        with device.generators_kept():
            device.seed(materials.rng_seed(mb))
            outputs = stage(*args)
        handed = tuple(map(_leaf, as_tuple(outputs)))
    return stage, args, outputs


def _leaf(value: Any) -> Any:
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, Tensor) else value


def _forward(materials: Materials, lane: int, mb: int, loss_scale: float, *, wide: bool) -> _Forward:
    """Run one micro-batch forward, on one stage or through the whole of a chain."""
    trial = materials.trial
    lanes = range(len(trial.stages)) if trial.chain else range(lane, lane + 1)
    passed: dict[int, _Passed] = {}
    device = device_of(_CPU if wide else materials.device)
    for index in lanes:
        stage = _frozen(materials, index, mb, wide=wide)
        before = passed.get(index - 1)
        args = _args(materials, index, mb, stage, wide=wide) if before is None else as_tuple(before.outputs)
        with device.generators_kept():
            device.seed(materials.rng_seed(mb))
            passed[index] = _Passed(stage, tuple(args), stage(*args))
    last = lanes[-1]
    outputs = passed[last].outputs
    if not trial.loss_at(last):
        given = materials.output_grads(last, mb)
        return _Forward(passed, *pair_roots(outputs, map_leaves(widen, given) if wide else given), None)
    target = materials.target(last, mb)
    loss = mean_squares(outputs, map_leaves(widen, target) if wide else target)
    return _Forward(passed, *pair_roots(loss * loss_scale if loss_scale != 1.0 else loss, None), loss)


def _frozen(materials: Materials, lane: int, mb: int, *, wide: bool) -> nn.Module:
    """Return the stage without prior gradients, its parameters frozen as they are when ``mb`` runs forward."""
    known = materials.whole_model.get((lane, wide))
    if known is not None:
        return known
    device = _CPU if wide else materials.device
    stage = materials.trial.stages[lane].make(dtype=materials.dtype, device=device, seed=materials.seed_of(lane))
    frozen = frozen_at(materials.trial.actions, lane, mb)
    for place, parameter in enumerate(stage.parameters()):
        if place in frozen:
            parameter.requires_grad = False
    made = widened(stage) if wide else stage
    # In a chain nothing is frozen midway, and no gradient is left behind: a stage without buffers stays what it is.
    if materials.trial.chain and device == _CPU and not any(True for _ in made.buffers()):
        materials.whole_model[lane, wide] = made
    return made


def _args(materials: Materials, lane: int, mb: int, stage: nn.Module, *, wide: bool) -> tuple[Any, ...]:
    if not wide:
        return materials.args(lane, mb, stage)
    drawn = tuple(widen(values) for values in materials.drawn(lane, mb))
    return place_arguments(materials.trial.stages[lane].inputs, drawn, stage, _CPU)


@dataclass(slots=True)
class Expected:
    """What one parameter's gradient is in float64 after the actions so far, and the largest partial sum met."""

    total: Tensor | None = None
    partials: Partials = field(default_factory=Partials)

    def add(self, grad: Tensor | None) -> None:
        """Accumulate one micro-batch's gradient."""
        if grad is None:
            return
        dense = grad.to_dense() if grad.layout != torch.strided else grad
        self.total = dense if self.total is None else self.total + dense
        self.partials = self.partials.with_(dense).with_(self.total)
