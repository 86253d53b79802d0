"""Evidence: all that is known of one trial, for the checks that judge it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from gradconform.adapter import Capabilities
from gradconform.materials import Materials
from gradconform.observation import Observation, Step
from gradconform.reference64 import Expected, MicrobatchGrads, microbatch_grads, widen
from gradconform.tolerance import FAR
from gradconform.trial import Trial


@dataclass(slots=True)
class Evidence:
    """One trial: what the implementation showed, what plain autograd showed, and reference64 when it is asked for.

    ``observations`` has one entry per repeat of the trial. ``oracle_again`` is a second run of plain autograd, where
    a trial has repeats. ``headrooms`` collects every error-to-bound ratio met; 0 stands for bit-equality with plain
    autograd. ``diagnose``: look for the likely cause of a wrong value. ``known`` holds the gradients of reference64
    that have been computed, by stage and micro-batch, ``plain`` those of a chain's whole model. ``place``: the
    device, where it is the device that is judged; what it showed are the observations, and the oracle is the CPU.
    ``spread`` is how far two runs of plain autograd are apart, by the id of the oracle's tensor; ``undeferred_peak``
    the memory that plain autograd takes with B in place of I and W; ``recomputed`` what the diagnosis has tried.
    """

    trial: Trial
    capabilities: Capabilities
    materials: Materials
    observations: tuple[Observation, ...]
    oracle: Observation
    loss_scale: float = 1.0
    oracle_again: Observation | None = None
    headrooms: list[float] = field(default_factory=list)
    diagnose: bool = True
    known: dict[tuple[int, int], MicrobatchGrads] = field(default_factory=dict)
    plain: dict[tuple[int, int], MicrobatchGrads] = field(default_factory=dict)
    place: torch.device | None = None
    spread: dict[int, float] = field(default_factory=dict)
    undeferred_peak: int | None = None
    recomputed: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    _steps: dict[int, Step] = field(default_factory=dict)

    @property
    def observation(self) -> Observation:
        """The first observation."""
        return self.observations[0]

    @property
    def zeros_for_none(self) -> bool:
        """Whether zeros may stand for None: some output gradient is None, which is claimed to mean zeros."""
        none_given = self.trial.output_grads.startswith(("none:", "only:"))
        return none_given and self.capabilities.none_as_zeros

    @property
    def factor(self) -> float:
        """How much wider the bound is than the rule's: a device has more room than an implementation on it."""
        return 1.0 if self.place is None else FAR

    @property
    def draws(self) -> bool:
        """Whether a stage draws random numbers on a device that has a generator of its own, unlike reference64's."""
        device = self.place or self.materials.device
        return device.type != "cpu" and any("rng" in case.traits for case in self.trial.stages)

    def oracle_step(self, step: Step) -> Step:
        """Return what plain autograd showed at the same place of the program."""
        if not self._steps:
            self._steps = {known.position: known for known in self.oracle.steps}
        return self._steps[step.position]

    def reference(self, lane: int, mb: int) -> MicrobatchGrads:
        """Return the float64 gradients of one micro-batch; computed once."""
        if (lane, mb) not in self.known:
            found = microbatch_grads(self.materials, lane, mb, self.loss_scale)
            self.known.update({(index, mb): grads for index, grads in found.items()})
        return self.known[lane, mb]

    def whole_model(self, lane: int, mb: int) -> MicrobatchGrads:
        """Return what a stage of a chain gets of one plain backward of the whole model in the trial's own dtype."""
        if (lane, mb) not in self.plain:
            found = microbatch_grads(self.materials, lane, mb, self.loss_scale, wide=False)
            self.plain.update({(index, mb): grads for index, grads in found.items()})
        return self.plain[lane, mb]

    def expected_param(self, name: str, step: Step) -> Expected:
        """Return the float64 gradient of a parameter after ``step``, and the partial sums met on the way."""
        lane = step.action.stage
        expected = Expected()
        if self.trial.prior_grads:
            names = list(self.reference(lane, 0).params)
            expected.add(widen(self.materials.prior(lane)[names.index(name)]))
        for action in self.trial.actions[: step.position + 1]:
            if action.stage != lane or action.misuse:
                continue
            if action.kind in {"B", "W"}:
                expected.add(self.reference(lane, action.mb).params[name])
            elif action.kind in {"zero_none", "zero_fill"}:
                expected = Expected(partials=expected.partials)
        return expected
