"""Evidence: all known facts about one trial, for the checks that judge it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from gradconform.adapter import Capabilities
from gradconform.fixtures.grad_tuples import gives_none
from gradconform.tolerance import FAR, Partials, sizes
from gradconform.trial.materials import Materials
from gradconform.trial.modes import LESS_PRECISE
from gradconform.trial.program import CLEARS, Action
from gradconform.trial.trial import Trial

from .observation import Observation, Raised, Step
from .oracle import OracleError
from .reference64 import Computed, Expected, MicrobatchGrads, References, widen


@dataclass(frozen=True, slots=True)
class Evidence:
    """One trial: observations of the implementation and of plain autograd, and reference64 if requested.

    ``references`` computes the gradients of reference64, and those of a chain's whole model, from the trial's
    materials. ``observations`` has one entry per repeat of the trial. ``oracle_again`` is a second run of plain
    autograd, if a trial has repeats. ``diagnose``: look for the likely cause of a wrong value. ``device`` is set if the
    device is judged: then its runs are the observations, and the oracle is the CPU. ``spread`` is the difference of two
    runs of plain autograd, by the id of the oracle's tensor. ``imprecise`` has the errors in eps of the device's
    operations that are not wrong. ``recomputed`` has the diagnosis's results. ``mistaken``: the oracle makes a mistake,
    so it is the reference itself; every difference is reported, and no cause is sought. ``room`` multiplies the bounds.
    """

    references: References
    capabilities: Capabilities
    observations: tuple[Observation, ...]
    oracle: Observation
    oracle_again: Observation | None = None
    diagnose: bool = True
    device: torch.device | None = None
    spread: Mapping[int, float] = field(default_factory=dict)
    imprecise: Mapping[str, float] = field(default_factory=dict)
    recomputed: Computed = field(default_factory=Computed)
    mistaken: bool = False
    room: float = 1.0

    @property
    def materials(self) -> Materials:
        """The materials of the trial."""
        return self.references.materials

    @property
    def loss_scale(self) -> float:
        """The factor of the loss."""
        return self.references.loss_scale

    @property
    def trial(self) -> Trial:
        """The trial."""
        return self.references.materials.trial

    @property
    def observation(self) -> Observation:
        """The first observation."""
        return self.observations[0]

    @property
    def zeros_for_none(self) -> bool:
        """Whether zeros are accepted for None: some output gradient is None, which is claimed to mean zeros."""
        return gives_none(self.trial.output_grads) and self.capabilities.none_as_zeros

    @property
    def factor(self) -> float:
        """The factor by which the bound is wider than the rule's: larger for a device than for an implementation on it.

        It is also larger in a mode that allows less precision than the dtype has, since rounding then depends on the
        selected kernels. A device is compared with the CPU, whose kernels may have rounded nothing.
        """
        lower = [LESS_PRECISE[mode] for mode in self.trial.modes & LESS_PRECISE.keys()]
        if self.device is None:
            return self.room * (FAR if lower else 1.0)
        return FAR * max([1.0, *(eps / torch.finfo(self.materials.dtype).eps for eps in lower)])

    @property
    def draws(self) -> bool:
        """Whether a stage draws random numbers on a device with its own generator, unlike reference64's."""
        device = self.device or self.materials.device
        return device.type != "cpu" and any("rng" in case.traits for case in self.trial.stages)

    def oracle_step(self, step: Step) -> Step:
        """Return plain autograd's step for the same action of the program."""
        return self.oracle.at(step.position)

    def reference(self, lane: int, mb: int, before: int | None = None) -> MicrobatchGrads:
        """Return the float64 gradients of one micro-batch, of its last F ``before`` a position; computed once."""
        return self.references.of(lane, mb, before=before)

    def on_device(self, lane: int, mb: int, before: int | None = None) -> MicrobatchGrads:
        """Return the gradients of one plain backward in the trial's dtype and on its device; a chain is one model.

        ``before`` is as in :meth:`reference`. Raises :class:`~gradconform.drive.oracle.OracleError` if the device lacks
        an operation: a program whose actions may raise need not have met it.
        """
        try:
            return self.references.of(lane, mb, wide=False, before=before)
        except NotImplementedError as error:
            raised = Raised.of(error)
            msg = f"{raised} in a backward of {'the whole model' if self.trial.chain else 'one micro-batch'}"
            raise OracleError(msg, raised) from error

    def expected_param(self, name: str, step: Step) -> Expected:
        """Return the float64 gradient of a parameter after ``step``, and its largest partial sums."""
        lane = step.action.stage
        expected = Expected()
        if self.trial.prior_grads:
            names = list(self.reference(lane, 0).params)
            expected = expected.plus(widen(self.materials.prior_of(lane, names.index(name))))
        for position, action in self._touching(name, step):
            if action.kind in CLEARS:
                expected = Expected(partials=expected.partials)
            else:
                expected = expected.plus(self.reference(action.stage, action.mb, position).params[name])
        return expected

    def terms_of_input(self, slot: int, step: Step) -> Partials:
        """Return the size of the terms that an input gradient is the sum of."""
        return sizes([self.references.terms(step.action.stage, step.action.mb, step.position + 1).inputs[slot]])

    def terms_of_param(self, name: str, step: Step) -> Partials:
        """Return the size of the terms that a parameter's gradient after ``step`` is the sum of."""
        return sizes(
            self.references.terms(action.stage, action.mb, position).params[name]
            for position, action in self._touching(name, step)
            if action.kind in {"B", "W"}
        )

    def _touching(self, name: str, step: Step) -> Iterator[tuple[int, Action]]:
        """Yield the actions that add to a parameter's gradient or clear it, up to ``step``, with their positions."""
        lane = step.action.stage
        sharing = self.trial.sharing(lane, name)
        for position, action in enumerate(self.trial.actions[: step.position + 1]):
            if action.stage not in sharing or action.misuse:
                continue
            adds = action.kind in {"B", "W"} and not self.is_frozen(lane, name, position)
            if adds or action.kind in CLEARS:
                yield position, action

    def is_frozen(self, lane: int, name: str, position: int) -> bool:
        """Return whether the program had frozen a parameter at the time of accumulation."""
        frozen = self.trial.standing(lane, position).frozen
        return bool(frozen) and list(self.reference(lane, 0).params).index(name) in frozen
