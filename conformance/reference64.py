"""reference64: plain autograd in float64 on the CPU, from the same rounded parameters, inputs and output gradients.

One gradient per micro-batch; what stands after an action is their sum, taken in float64. The stages of a chain are one
model here: one forward through all of them, and one backward. The same in the trial's own dtype is what a chain is held
against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from gradconform.fixtures.inputs import place_arguments
from gradconform.fixtures.trees import Tree, as_tuple, leaves, map_leaves
from gradconform.materials import Materials, mean_squares
from gradconform.program import frozen_at
from gradconform.reference.autograd import pair_roots
from gradconform.tolerance import Partials

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

    In float64 on the CPU where ``wide``, else in the trial's dtype on its device.
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
    grads = dict(zip(sought, found, strict=True))
    last = max(forward.passed)
    return {
        index: MicrobatchGrads(
            tuple(grads.get(id(arg)) for arg in passed.args),
            {name: grads.get(id(parameter)) for name, parameter in passed.stage.named_parameters()},
            tuple(map(_detached, dict(leaves(as_tuple(passed.outputs))).values())),
            _detached(forward.loss) if index == last else None,
        )
        for index, passed in forward.passed.items()
    }


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


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


def uses_of(materials: Materials, lane: int, mb: int, name: str, loss_scale: float) -> list[Tensor]:
    """Return the float64 gradient of every use of parameter ``name``: what arrives along each edge of the graph."""
    forward = _forward(materials, lane, mb, loss_scale, wide=True)
    roots, grads = forward.roots, forward.grads
    parameter = forward.passed[lane].stage.get_parameter(name)
    if not (roots and parameter.requires_grad):
        return []
    accumulator = get_gradient_edge(parameter).node
    found: list[Tensor] = []
    seen: set[Node] = set()
    stack = [get_gradient_edge(root).node for root in roots]
    handles = []
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack += [child for child, _ in node.next_functions if child is not None]
        slots = [slot for slot, (child, _) in enumerate(node.next_functions) if child is accumulator]
        if slots:
            handles.append(node.register_hook(_collector(slots, found)))
    torch.autograd.backward(roots, grads, inputs=[parameter])
    for handle in handles:
        handle.remove()
    return found


def _collector(slots: list[int], found: list[Tensor]) -> Callable[..., None]:
    def hook(grad_inputs: tuple[Tensor | None, ...], grad_outputs: object) -> None:
        del grad_outputs
        found.extend(grad for slot in slots if (grad := grad_inputs[slot]) is not None)

    return hook


def _forward(materials: Materials, lane: int, mb: int, loss_scale: float, *, wide: bool) -> _Forward:
    """Run one micro-batch forward, on one stage or through the whole of a chain."""
    trial = materials.trial
    lanes = range(len(trial.stages)) if trial.chain else range(lane, lane + 1)
    passed: dict[int, _Passed] = {}
    for index in lanes:
        stage = _stage(materials, index, wide=wide)
        frozen = frozen_at(trial.actions, index, mb)
        for place, parameter in enumerate(stage.parameters()):
            if place in frozen:
                parameter.requires_grad = False
        args = as_tuple(passed[index - 1].outputs) if index - 1 in passed else _args(materials, index, mb, stage, wide)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(materials.rng_state(mb))
            passed[index] = _Passed(stage, tuple(args), stage(*args))
    last = lanes[-1]
    outputs = passed[last].outputs
    if not trial.loss_at(last):
        given = materials.output_grads(last, mb)
        return _Forward(passed, *pair_roots(outputs, map_leaves(widen, given) if wide else given), None)
    target = materials.target(last, mb)
    loss = mean_squares(outputs, map_leaves(widen, target) if wide else target)
    return _Forward(passed, *pair_roots(loss * loss_scale if loss_scale != 1.0 else loss, None), loss)


def _stage(materials: Materials, lane: int, *, wide: bool) -> nn.Module:
    """Return the stage without prior gradients."""
    device = _CPU if wide else materials.device
    stage = materials.trial.stages[lane].make(dtype=materials.dtype, device=device, seed=materials.seed_of(lane))
    return widened(stage) if wide else stage


def _args(materials: Materials, lane: int, mb: int, stage: nn.Module, wide: bool) -> tuple[Any, ...]:  # noqa: FBT001 (as _stage)
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
