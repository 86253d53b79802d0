"""reference64: plain autograd in float64 on the CPU, from the same rounded parameters, inputs and output gradients.

There is one gradient per micro-batch; the gradient after an action is their sum, taken in float64. The stages of a
chain are one model here: one forward through all of them, and one backward. A chain is compared with the same model in
the trial's own dtype.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.devices.device import Device, device_of
from gradconform.fixtures.inputs import place_arguments
from gradconform.reference.autograd import Passed, pair_roots, run_backward, run_forward
from gradconform.reference.recomputed import Root
from gradconform.tolerance import Partials
from gradconform.trees import Tree, as_tuple, leaves, map_leaves
from gradconform.trial.bounded import Bounded
from gradconform.trial.materials import Materials, mean_squares
from gradconform.trial.modes import OF_FORWARD, call_in
from gradconform.trial.program import forward_of

from .cancellation import Shaking
from .gradient_hooks import HOOKS
from .stage_changes import change_in_place, tie
from .watches import on_cpu

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class MicrobatchGrads:
    """One micro-batch's gradients on one stage: one per argument, one per parameter name; None for none.

    ``outputs`` has the leaves of the stage's outputs; ``loss`` is the loss function's result, before any scale.
    """

    inputs: tuple[Tensor | None, ...]
    params: dict[str, Tensor | None]
    outputs: tuple[Any, ...] = ()
    loss: Tensor | None = None


def widen(value: Any) -> Any:
    """Return a floating or complex tensor in float64 or complex128 on the CPU; anything else as it is."""
    if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        wide = torch.complex128 if value.is_complex() else torch.float64
        return value.detach().cpu().to(wide)
    return value


def widened(stage: nn.Module) -> nn.Module:
    """Return ``stage`` in its float64 form, changed in place."""
    for tensor in (*stage.parameters(), *stage.buffers()):
        tensor.data = widen(tensor)
    return stage


class Computed:
    """Stores computed values; its owner decides how long it lives, and how many bytes they may have."""

    def __init__(self, most: int | None = None) -> None:
        self._known: dict[Hashable, Any] = {}
        self._bounded: Bounded[Any] | None = None if most is None else Bounded(most)

    def of(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return the value of ``key``; ``make`` creates it the first time, or again if it was freed."""
        if self._bounded is not None:
            found = self._bounded.get(key)
            if found is None:
                found = make()
                self._bounded.put(key, found)
            return found
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]


class References:
    """The right gradients of one trial, by stage and micro-batch; each is computed once, at its first use.

    They are taken from ``materials``, and ``loss_scale`` multiplies the loss. ``shared`` stores values that other
    trials need as well: a micro-batch's gradients do not depend on the order of the program.
    """

    def __init__(self, materials: Materials, loss_scale: float = 1.0, shared: Computed | None = None) -> None:
        self.materials, self.loss_scale = materials, loss_scale
        self._shared = Computed() if shared is None else shared
        self._known: dict[tuple[int, int, bool, int], MicrobatchGrads] = {}
        self._stages: dict[tuple[int, bool], nn.Module] = {}

    def of(self, lane: int, mb: int, *, wide: bool = True, before: int | None = None) -> MicrobatchGrads:
        """Return the gradients of one micro-batch on one stage, of its last F ``before`` a position of the program.

        They are in float64 if ``wide``, else in the trial's dtype and computed on its device; they are stored on the
        CPU. Those of a chain are computed for all its stages at once.
        """
        forward = self._forward_before(lane, mb, before)
        if (lane, mb, wide, forward) not in self._known:
            lanes = self._lanes(lane)
            found = self._shared.of(
                self._key(lanes, mb, forward, wide=wide), lambda: dict(self._run(lanes, mb, forward, wide=wide))
            )
            self._known.update({(index, mb, wide, forward): grads for index, grads in found.items()})
        return self._known[lane, mb, wide, forward]

    @property
    def computed(self) -> Sequence[MicrobatchGrads]:
        """The gradients that were computed so far."""
        return [*self._known.values()]

    def terms(self, lane: int, mb: int, before: int | None = None) -> MicrobatchGrads:
        """Return, instead of each gradient, the size of the terms that it is the sum of.

        A separate backward measures them once, at their first use.
        """
        lanes, forward = self._lanes(lane), self._forward_before(lane, mb, before)
        key = "terms", self._key(lanes, mb, forward, wide=True)
        found: dict[int, MicrobatchGrads] = self._shared.of(key, lambda: dict(self._terms(lanes, mb, forward)))
        return found[lane]

    def _terms(self, lanes: range, mb: int, forward: int) -> Iterator[tuple[int, MicrobatchGrads]]:
        shaking = Shaking()
        for lane, shaken in self._run(lanes, mb, forward, wide=True, started=shaking.begin):
            still = self.of(lane, mb, before=forward + 1)
            inputs = tuple(map(shaking.terms, shaken.inputs, still.inputs))
            params = {name: shaking.terms(grad, still.params[name]) for name, grad in shaken.params.items()}
            yield lane, MicrobatchGrads(inputs, params)

    def _lanes(self, lane: int) -> range:
        """Return the stages that run to compute the gradients of one: the stages of a chain are one model."""
        return range(len(self.materials.trial.stages)) if self.materials.trial.chain else range(lane, lane + 1)

    def _forward_before(self, lane: int, mb: int, before: int | None) -> int:
        trial = self.materials.trial
        return 0 if trial.chain else forward_of(trial.actions, lane, mb, before)

    def _key(self, lanes: range, mb: int, forward: int, *, wide: bool) -> Hashable:
        """Return all values on which the gradients of one micro-batch depend."""
        materials, trial = self.materials, self.materials.trial
        drawn = (
            str(materials.dtype),
            str(materials.device),
            materials.seed,
            mb,
            trial.same_args,
            trial.output_grads,
            trial.received,
        )
        stand = tuple(trial.standing(lane, forward) for lane in lanes)
        loss, modes = (trial.loss_at(lanes[-1]), self.loss_scale), trial.modes & OF_FORWARD
        shared = trial.one_module, trial.tied, trial.altering if trial.altering in HOOKS else ""
        return "microbatch", wide, lanes, tuple(trial.stages[lane] for lane in lanes), drawn, stand, loss, modes, shared

    def passed(self, lane: int, mb: int, forward: int, prepare: Callable[[nn.Module], object] | None = None) -> Passed:
        """Return one stage after its F at the position ``forward``, in float64, its arguments leaves.

        In a chain the earlier stages run as well. ``prepare`` changes the stage before.
        """
        lanes = range(0 if self.materials.trial.chain else lane, lane + 1)
        own = self._made(lane, forward, wide=True)  # a new one: it may be changed
        if prepare is not None:
            prepare(own)
        stages = [*(self._stage(index, 0, wide=True) for index in lanes[:-1]), own]
        return self._forward(stages, lanes, mb, wide=True, separately=True)[-1]

    def _run(
        self,
        lanes: range,
        mb: int,
        forward: int,
        *,
        wide: bool,
        started: Callable[[Sequence[Root]], object] = lambda _: None,
    ) -> Iterator[tuple[int, MicrobatchGrads]]:
        """Yield each stage's number and gradients from one micro-batch, on one stage or through the whole of a chain.

        ``started`` is called with the start of the backward, before it runs.
        """
        passed = self._forward([self._stage(index, forward, wide=wide) for index in lanes], lanes, mb, wide=wide)
        roots, grads, loss = self._start(passed[-1].outputs, lanes[-1], mb, wide=wide)
        started(roots)
        sought = (tensor for one in passed for tensor in (*one.args, *one.stage.parameters()))
        found = {key: on_cpu(grad) for key, grad in run_backward(roots, grads, sought).items()}
        hook = HOOKS.get(self.materials.trial.altering)
        if hook is not None:
            found |= {id(p): hook(found.get(id(p))) for one in passed for p in one.stage.parameters()}
        for index, one in zip(lanes, passed, strict=True):
            yield (
                index,
                MicrobatchGrads(
                    tuple(found.get(id(arg)) for arg in one.args),
                    {name: found.get(id(parameter)) for name, parameter in one.stage.named_parameters()},
                    tuple(map(on_cpu, dict(leaves(as_tuple(one.outputs))).values())),
                    on_cpu(loss) if index == lanes[-1] else None,
                ),
            )

    def _forward(
        self, stages: list[nn.Module], lanes: range, mb: int, *, wide: bool, separately: bool = False
    ) -> list[Passed]:
        args = _args(self.materials, lanes[0], mb, stages[0], wide=wide)
        on, seed = _CPU if wide else self.materials.device, self.materials.rng_seed(mb)
        forward = partial(run_forward, stages, args, around=lambda: _seeded(device_of(on), seed), separately=separately)
        return call_in(self.materials.trial.modes & OF_FORWARD, "F", on, forward)

    def _start(
        self, outputs: Tree, lane: int, mb: int, *, wide: bool
    ) -> tuple[list[Root], list[Tensor | None], Tensor | None]:
        """Return where the backward starts, the gradients there, and the loss if it starts there."""
        if not self.materials.trial.loss_at(lane):
            given = self.materials.output_grads(lane, mb)
            return (*pair_roots(outputs, map_leaves(widen, given) if wide else given), None)
        target = self.materials.target(lane, mb)
        loss = mean_squares(outputs, map_leaves(widen, target) if wide else target)
        scaled = loss * self.loss_scale if self.loss_scale != 1.0 else loss
        return (*pair_roots(scaled, None), loss)

    def _stage(self, lane: int, forward: int, *, wide: bool) -> nn.Module:
        """Return a stage as it is at the position ``forward``; a chain's stage without state stays the same.

        In a chain nothing is frozen midway, and no gradient is left behind.
        """
        known = self._stages.get((lane, wide))
        if known is not None:
            return known
        made = self._made(lane, forward, wide=wide)
        on_the_cpu = wide or self.materials.device == _CPU
        if self.materials.trial.chain and on_the_cpu and not any(True for _ in made.buffers()):
            self._stages[lane, wide] = made
        return made

    def _made(self, lane: int, forward: int, *, wide: bool) -> nn.Module:
        """Return a new stage without prior gradients, its parameters as they are at the position ``forward``."""
        materials = self.materials
        device = _CPU if wide else materials.device
        stages, dtype = materials.trial.stages, materials.dtype
        stage = stages[lane].make(dtype=dtype, device=device, seed=materials.stage_seed(lane))
        if lane and materials.trial.tied:
            first = stages[0].make(dtype=dtype, device=device, seed=materials.stage_seed(0))
            tie(stage, first, materials.trial.tied)
        stand = materials.trial.standing(lane, forward)
        for number, parameter in enumerate(stage.parameters()):
            if number in stand.frozen | stand.thawed:
                parameter.requires_grad = number in stand.thawed
        for _ in range(stand.changes):
            change_in_place(stage)
        if "eval" in materials.trial.modes:
            stage.eval()
        return widened(stage) if wide else stage


@contextlib.contextmanager
def _seeded(device: Device, seed: int) -> Iterator[None]:
    with device.generators_kept():
        device.seed(seed)
        yield


def _args(materials: Materials, lane: int, mb: int, stage: nn.Module, *, wide: bool) -> tuple[Any, ...]:
    if not wide:
        return materials.args(lane, mb, stage)
    drawn = tuple(widen(values) for values in materials.drawn(lane, mb))
    return place_arguments(materials.trial.stages[lane].inputs, drawn, stage, _CPU, materials.turn(mb))


@dataclass(frozen=True, slots=True)
class Expected:
    """One parameter's float64 gradient after the actions so far, and its largest partial sum."""

    total: Tensor | None = None
    partials: Partials = field(default_factory=Partials)

    def plus(self, grad: Tensor | None) -> Expected:
        """Return the gradient after one more micro-batch's gradient is accumulated."""
        if grad is None:
            return self
        dense = grad.to_dense() if grad.layout != torch.strided else grad
        total = dense if self.total is None else self.total + dense
        return Expected(total, self.partials.with_(dense).with_(total))


class OracleCache(Computed):
    """Stores plain autograd's results of a trial, which depend on its device and not on a target."""

    def references(self, materials: Materials, loss_scale: float) -> References:
        """Return the right gradients of a trial, including the known ones."""
        found: References = self.of(
            (trial_key(materials, loss_scale), "references"), lambda: References(materials, loss_scale, self)
        )
        return found

    def of_trial(self, materials: Materials, loss_scale: float, what: str, make: Callable[[], Any]) -> Any:
        """Return the value named ``what`` of a trial; ``make`` creates it the first time."""
        return self.of((trial_key(materials, loss_scale), what), make)


def trial_key(materials: Materials, loss_scale: float) -> Hashable:
    """Return a trial with all sources of its values, and the factor of its loss."""
    return materials.trial, str(materials.device), str(materials.dtype), materials.seed, loss_scale
