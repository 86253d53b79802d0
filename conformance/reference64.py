"""reference64: plain autograd in float64 on the CPU, from the same rounded parameters, inputs and output gradients.

One gradient per micro-batch; what stands after an action is their sum, taken in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from gradconform.fixtures.inputs import place_arguments
from gradconform.fixtures.trees import map_leaves
from gradconform.materials import Materials, mean_squares
from gradconform.program import frozen_at
from gradconform.reference.autograd import pair_roots
from gradconform.tolerance import Partials

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MicrobatchGrads:
    """The gradients of one micro-batch in float64: one per argument, one per parameter name; None for none."""

    inputs: tuple[Tensor | None, ...]
    params: dict[str, Tensor | None]


def microbatch_grads(materials: Materials, lane: int, mb: int, loss_scale: float) -> MicrobatchGrads:
    """Return the float64 gradients of one micro-batch of ``materials``."""
    return _gradients(*_forward(materials, lane, mb, loss_scale))


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
    stage, _, roots, grads = _forward(materials, lane, mb, loss_scale)
    parameter = stage.get_parameter(name)
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


def _forward(
    materials: Materials, lane: int, mb: int, loss_scale: float
) -> tuple[nn.Module, tuple[Any, ...], list[Tensor], list[Tensor | None]]:
    """Run one micro-batch forward in float64; return stage, arguments, and where its backward starts."""
    trial = materials.trial
    case = trial.stages[lane]
    stage = widened(case.make(dtype=materials.dtype, device=_CPU, seed=materials.seed_of(lane)))
    frozen = frozen_at(trial.actions, lane, mb)
    for index, parameter in enumerate(stage.parameters()):
        if index in frozen:
            parameter.requires_grad = False
    drawn = tuple(widen(values) for values in materials.drawn(lane, 0 if trial.same_args else mb))
    args = place_arguments(case.inputs, drawn, stage, _CPU)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(materials.rng_state(mb))
        outputs = stage(*args)
    if trial.loss:
        loss = mean_squares(outputs, map_leaves(widen, materials.target(lane, mb))) * loss_scale
        roots, grads = pair_roots(loss, None)
    else:
        roots, grads = pair_roots(outputs, map_leaves(widen, materials.output_grads(lane, mb)))
    return stage, args, roots, grads


def _gradients(
    stage: nn.Module, args: tuple[Any, ...], roots: list[Tensor], grads: list[Tensor | None]
) -> MicrobatchGrads:
    wanted = [arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad]
    named = [(name, parameter) for name, parameter in stage.named_parameters() if parameter.requires_grad]
    sought = [*wanted, *(parameter for _, parameter in named)]
    found: list[Tensor | None] = [None] * len(sought)
    if roots and sought:
        found = list(torch.autograd.grad(roots, sought, grads, allow_unused=True))
    inputs = iter(found)
    per_argument = tuple(next(inputs) if isinstance(a, Tensor) and a.requires_grad else None for a in args)
    params: dict[str, Tensor | None] = {name: None for name, _ in stage.named_parameters()}
    params.update({name: None if grad is None else grad for (name, _), grad in zip(named, inputs, strict=True)})
    return MicrobatchGrads(per_argument, params)


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
