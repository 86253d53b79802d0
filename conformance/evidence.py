"""Evidence: all that is known of one trial, for the checks that judge it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradconform.adapter import Capabilities
from gradconform.materials import Materials
from gradconform.observation import Observation, Step
from gradconform.reference64 import Expected, MicrobatchGrads, microbatch_grads, widen
from gradconform.trial import Trial


@dataclass(slots=True)
class Evidence:
    """One trial: what the implementation showed, what plain autograd showed, and reference64 when it is asked for.

    ``observations`` has one entry per repeat of the trial. ``oracle_again`` is a second run of plain autograd, where a
    trial has repeats. ``headrooms`` collects every error-to-bound ratio met; 0
    stands for bit-equality with plain autograd. ``diagnose``: look for the likely cause of a wrong value. ``known``
    holds the gradients of reference64 that have been computed, by stage and micro-batch.
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
    _steps: dict[int, Step] = field(default_factory=dict)
    _plain: dict[tuple[int, int], MicrobatchGrads] = field(default_factory=dict)

    @property
    def observation(self) -> Observation:
        """The first observation."""
        return self.observations[0]

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
        if (lane, mb) not in self._plain:
            found = microbatch_grads(self.materials, lane, mb, self.loss_scale, wide=False)
            self._plain.update({(index, mb): grads for index, grads in found.items()})
        return self._plain[lane, mb]

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
