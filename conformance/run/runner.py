"""Runs checks on one target, device and dtype, and turns the findings into results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch

from gradconform.adapter import Adapter, Capabilities, UnsupportedError, is_option
from gradconform.contract.check import Check, Judge
from gradconform.coverage import REFUSED
from gradconform.devices.device import device_of
from gradconform.drive.adapter_mistake import AdapterMistakeError, raised_by_the_kit
from gradconform.drive.driver import drive
from gradconform.drive.evidence import Evidence
from gradconform.drive.kept_process import KeptProcess
from gradconform.drive.main_grad import NotClearedError
from gradconform.drive.observation import AS_BEFORE, Observation, Raised
from gradconform.drive.operation_log import drive_logged
from gradconform.drive.oracle import DeviceLostError, Oracle, OracleError, WatchError
from gradconform.drive.reference64 import OracleCache, References
from gradconform.judge.device_trust import DeviceFaultError, DeviceTrust, agree
from gradconform.judge.finding import Finding, RefusedError, error_ratios_in, findings_in
from gradconform.judge.state import same_bits
from gradconform.process.interrupts import pass_on_an_interrupt
from gradconform.results import Result
from gradconform.target.functions import FunctionsAdapter
from gradconform.target.resolve import Target
from gradconform.tolerance import tolerances_of
from gradconform.trial.bounded import Bounded
from gradconform.trial.materials import Materials
from gradconform.trial.program import UNDER_PLAIN_AUTOGRAD, Action
from gradconform.trial.trial import Trial
from gradconform.user_input.option_help import DEFAULT_SEED

from . import samples
from .alike_failures import AlikeFailures
from .first_wrong_module import FirstWrongModules
from .judging import exhausted, judged, one_thread
from .measurements import Measurements
from .narrowing import NeededValues, SmallestModules
from .preflight import preflight, unmet_claims
from .single_mistakes import JudgedTrial, SingleMistakes, control_trials
from .wider_dtype import CausesInFloat32

#: How often plain autograd runs again if an implementation did not repeat its values.
_CHANCES = 5

#: The bytes of the evidence that is kept for later checks that read the same trials.
_KEPT_BYTES = 2**25


class TargetRefusedError(RefusedError):
    """A session, or ``open``, raised :class:`~gradconform.adapter.UnsupportedError`."""


class AdapterError(Exception):
    """An adapter fails its pre-flight, or one of the kit is wrong: nothing can be judged through it."""


class Runner:
    """Runs checks on one target, device and dtype. Each trial is run once and judged by all checks that read it."""

    def __init__(  # noqa: PLR0913 (the target, its place, and the depth of the run)
        self,
        target: Target,
        *,
        device: torch.device,
        dtype: torch.dtype,
        seed: int = DEFAULT_SEED,
        probe: bool = False,
        diagnose: bool = True,
        oracles: OracleCache | None = None,
        require_device_execution: float | None = None,
        readers: Mapping[Trial, int] | None = None,
    ) -> None:
        """Store the target and the device and dtype to judge it on.

        ``probe`` also tries unclaimed capabilities (profile ``full``), and ``diagnose`` looks for the likely cause of a
        wrong value. ``oracles`` holds plain autograd's results from runners of other targets.
        ``require_device_execution`` is the percentage of the operations that must run on the device. ``readers`` counts
        the checks that will read each trial: its evidence is freed after the last one.
        """
        self._required = require_device_execution
        self._diagnose = diagnose
        self.target, self.device, self.dtype, self.seed, self.probe = target, device, dtype, seed, probe
        self._oracle = Oracle(device, oracles)
        self._trust = DeviceTrust(self._oracle)
        self._tolerances = device_of(device).tolerances
        self._device_faults: dict[Trial, DeviceFaultError] = {}
        self._evidence: Bounded[Evidence] = Bounded(_KEPT_BYTES)
        self._readers = None if readers is None else Counter(readers)
        self._shown_withheld: frozenset[str] | None = None
        self._needed_values, self._smallest_modules = NeededValues(self._tried), SmallestModules(self._tried)
        self._causes_in_float32 = CausesInFloat32(dtype, self._in_float32)
        self._first_wrong_modules = FirstWrongModules(target.adapter, dtype, device, seed, {})
        mistakes = SingleMistakes(lambda: control_trials(target.capabilities, self._judgeable))
        self._alike_failures = AlikeFailures(mistakes)
        #: Whether failures are explained by additional trials.
        self.explains = diagnose

    def run(self, check: Check) -> Result:
        """Return the result of one check. The target's errors are never raised, only a person's ctrl-C."""
        return judged(self, check)

    @property
    def answers(self) -> bool:
        """Whether the device still computes."""
        return self._oracle.answers

    def verdict_on(self, check: Check, error: BaseException) -> dict[str, Any] | None:
        """Return the verdict on a check that raised an error of the target, the device or an adapter; else None."""
        if isinstance(error, RefusedError):
            return self._refused(check, error)
        if isinstance(error, DeviceFaultError):
            return _device_fault(check, error)
        return next((values for kind, values in self._explanations(error) if isinstance(error, kind)), None)

    def _explanations(self, error: BaseException) -> Iterator[tuple[type[BaseException], dict[str, Any]]]:
        """Yield the kinds of errors that are nobody's mistake in computing, each with the verdict on its check."""
        memory = exhausted(getattr(error, "raised", None))
        yield UnsupportedError, {"status": "unsupported", "message": f"not supported: {error}"}
        wrong = f"the kit's adapter of {self.target.name} is wrong, and the implementation not charged with it: {error}"
        yield AdapterMistakeError, {"status": "error", "kind": "adapter", "message": wrong}
        watched = f"{error}; neither {self.target.name} nor {self.device} is charged with it"
        yield WatchError, {"status": "error", "kind": "kit", "message": watched}
        plain = f"plain autograd on this device raised {error}"
        yield OracleError, {"status": "unsupported", "kind": "environment", "message": plain, **memory}
        lost = f"{self.device} failed: {error}"
        yield DeviceLostError, {"status": "error", "kind": "environment", "message": lost, **memory}

    def values(self, check: Check, measured: Measurements) -> dict[str, Any]:
        """Return the verdict on a check by its trials, as fields of its result."""
        unmet = self._unmet(check)
        if unmet and not self.probe:
            return {"status": "unsupported", "unclaimed": tuple(unmet), "message": f"not claimed: {', '.join(unmet)}"}
        if self._adapter_problem and not self.place_unmet:  # an unclaimed dtype or device may be refused
            return {"status": "error", "kind": "adapter", "message": self._adapter_problem}
        tried, readings = self._judged_trials(check, measured)
        tried, explanation = self._explained(check, tried, claimed=not unmet) if self.explains else (tried, {})
        silent = [finding for one in tried if not one.refuses for finding in one.findings]
        findings = samples.reported_findings(check, [(one.evidence.trial, one.findings) for one in tried])
        if check.pooled is not None and not findings:
            judged = list(check.pooled.judge(readings))
            findings, silent = findings_in(judged), findings_in(judged)
            measured.error_ratios += error_ratios_in(judged)
        below = None if self._required is None else measured.below(self._required)
        if below is not None:
            return _off_device(self.device, *below)
        explanation = _noted(explanation, tried) if check.trials[0].raising else explanation
        return self._kit_error(findings) or (
            _probed(unmet, findings, silent) if unmet else {"findings": findings, **explanation}
        )

    def _judged_trials(self, check: Check, measured: Measurements) -> tuple[list[JudgedTrial], list[Any]]:
        """Return the judged trials of a check, and readings.

        Raises :class:`TargetRefusedError` if the target refused a trial and no other trial is wrong.
        """
        tried: list[JudgedTrial] = []
        readings: list[Any] = []
        refused: TargetRefusedError | None = None
        for trial in check.trials:
            try:
                evidence = self.evidence(trial)
            except TargetRefusedError as error:  # another trial may still be wrong, which no refusal hides
                refused = error
                continue
            judged = list(check.judge(evidence))
            found = findings_in(judged)
            if found:  # the evidence of right trials is freed
                tried.append(JudgedTrial(evidence, found))
            measured.add(evidence, error_ratios_in(judged))
            if check.pooled is not None:
                if found:
                    break
                readings.append(check.pooled.read(evidence))
                if check.pooled.settled(readings, len(check.trials)):
                    break
        if measured.heaviest is not None:
            measured.compare_undeferred(self._oracle.undeferred_peak(measured.heaviest))
        if refused is not None and not tried:
            raise refused
        return tried, readings

    def _explained(
        self, check: Check, tried: list[JudgedTrial], *, claimed: bool
    ) -> tuple[list[JudgedTrial], dict[str, Any]]:
        """Return the wrong trials of a check with what their findings need, and the explanation as fields of a result.

        An error on the way costs the explanation and not the verdict, which is known.
        """
        try:
            undone = self._alike_failures.explained(check, samples.of_message(check, tried)) if claimed else ()
            return self._narrowed(check, tried, undone), {"undone": undone}
        except BaseException as error:  # noqa: BLE001 (the failure itself is reported in any case)
            pass_on_an_interrupt(error)
            raised = Raised.of(error)
            note = f"no explanation: the search for one raised {raised}; report a defect of the kit"
            return tried, {"note": note, **exhausted(raised)}

    def _narrowed(
        self, check: Check, tried: list[JudgedTrial], undone: tuple[dict[str, Any], ...]
    ) -> list[JudgedTrial]:
        """Return the wrong trials with what their findings need.

        A mistake that leaves nothing needs no value of a row.
        """
        whole = any(not one["left"] for one in undone)
        narrowed = []
        for one in tried:
            found, trial = list(one.findings), one.evidence.trial
            found = found if whole else self._causes_in_float32.annotate(check, trial, found)
            found = found if whole else self._needed_values.annotate(check, found)
            found = self._smallest_modules.annotate(check, trial, found)
            narrowed.append(replace(one, findings=self._first_wrong_modules.annotate(check, trial, found)))
        return narrowed

    def _kit_error(self, findings: list[Finding]) -> dict[str, Any] | None:
        """Return the verdict if the kit's own code raised, which is nobody else's fault; else None."""
        for own in (one.raised for one in findings if one.raised is not None):
            if raised_by_the_kit(own, self.target.file):
                text = f"the kit's right split raised {own} ({own.file}:{own.line}); the device is not charged with it"
                return {"status": "error", "kind": "kit", "message": text}
        return None

    def _refused(self, check: Check, error: RefusedError) -> dict[str, Any]:
        """Return the verdict on a refusal: unsupported if the target raised it, else an unmet claim."""
        unmet = self._unmet(check)
        if unmet:
            text = f"not claimed: {', '.join(unmet)}; tried, and refused"
            return {"status": "unsupported", "unclaimed": tuple(unmet), "message": text}
        if isinstance(error, TargetRefusedError):
            return {"status": "unsupported", "kind": REFUSED, "message": f"refused by {self.target.name}: {error}"}
        needs = ", ".join(sorted(check.needs)) or "nothing in particular"
        text = f"claimed, but refused: {error}; support it, or withdraw the claim to one of: {needs}"
        return {"status": "failed", "kind": "refused", "message": text}

    def _unmet(self, check: Check) -> list[str]:
        """Return the required capabilities that the target does not claim; those that need a test are checked last."""
        unmet = [*check.unmet(self.claims), *self.place_unmet]
        return unmet or sorted(self._withheld(check.needs))

    def _withheld(self, needs: frozenset[str]) -> frozenset[str]:
        adapter = self.target.adapter
        if not isinstance(adapter, FunctionsAdapter) or needs.isdisjoint(adapter.unstated):
            return frozenset()
        if self._shown_withheld is None:
            with KeptProcess(self.device):
                self._shown_withheld = adapter.claims_withheld(self.device, self.dtype)
        return needs & self._shown_withheld

    @property
    def place_unmet(self) -> list[str]:
        """Which of dtype and device the target does not claim."""
        claims = self.target.capabilities
        dtype, device = str(self.dtype).removeprefix("torch."), self.device.type
        unmet = [f"dtype {dtype}"] if claims.dtypes is not None and dtype not in claims.dtypes else []
        return [*unmet, f"device {device}"] if claims.devices is not None and device not in claims.devices else unmet

    def findings(self, trial: Trial, judge: Judge) -> list[Finding]:
        """Return the findings of one trial that belongs to no check.

        Raises :class:`UnsupportedError` if it is refused, and :class:`OracleError` if plain autograd cannot do it.
        Raises :class:`AdapterError` if an adapter fails its pre-flight, or one of the kit is wrong.
        """
        with one_thread(), tolerances_of(self._tolerances):
            if self._adapter_problem:
                raise AdapterError(self._adapter_problem)
            try:
                return findings_in(judge(self.evidence(trial)))
            except AdapterMistakeError as error:
                raise AdapterError(str(error)) from error

    def _tried(self, check: Check, trial: Trial) -> list[Finding] | None:
        """Return the findings of a trial that only explains a failure of ``check``; None if they cannot be determined.

        It requires no claim that the check does not require, and none of its errors is a verdict on the check.
        """
        if self.claims.unclaimed(trial.needs - check.needs):
            return None
        try:
            evidence = self._evidence.get(trial) or self._judgeable(trial)
            return findings_in(check.judge(replace(evidence, diagnose=False)))
        except BaseException as error:  # noqa: BLE001 (the failure itself is reported in any case)
            pass_on_an_interrupt(error)
            return None

    def _in_float32(self, check: Check, trial: Trial) -> list[Finding]:
        """Return the findings of a check's trial in float32, with their causes; none if the target refuses it there."""
        other = self._wider
        return [] if other.place_unmet else other.findings(trial, check.judge)

    @cached_property
    def _wider(self) -> Runner:
        """Judges the target in float32; it keeps nothing."""
        return Runner(self.target, device=self.device, dtype=torch.float32, seed=self.seed, readers={})

    def evidence(self, trial: Trial) -> Evidence:
        """Return the evidence of a trial, from plain autograd and the implementation in turn.

        It is kept for the later checks that read it, if ``readers`` counts them, else for any later check.
        """
        evidence = self._evidence.pop(trial)
        if evidence is None:
            evidence = self._judgeable(trial)
        if self._readers is not None:
            self._readers[trial] -= 1
            if self._readers[trial] <= 0:  # no later check reads it
                return evidence
        self._evidence.put(trial, evidence, evidence.observations, evidence.oracle, evidence.references.computed)
        return evidence

    def _judgeable(self, trial: Trial) -> Evidence:
        """Return new evidence of a trial; raise :class:`DeviceFaultError` if the device is wrong."""
        if trial in self._device_faults:  # reported again for every check that reads the trial, found once
            raise self._device_faults[trial].with_traceback(None)
        try:
            return self._new_evidence(trial)
        except DeviceFaultError as error:
            self._device_faults[trial] = DeviceFaultError(str(error), error.findings)  # without its frames
            raise

    def _new_evidence(self, trial: Trial) -> Evidence:
        materials = Materials(trial, dtype=self.dtype, device=self.device, seed=self.seed)
        divided = self.target.capabilities.loss_divided_by_microbatches
        scale = 1.0 / trial.microbatches() if trial.loss and divided else 1.0
        references = self._oracle.references(materials, scale)
        oracle, imprecise = self._trust.observe(references)
        observations = self._observe(materials, trial.repeats, oracle, logged=_is_measured(oracle))
        if _log_may_matter(oracle, observations[0]):
            oracle, imprecise = self._trust.observe(references, logged=True)
            if oracle.executed is None:
                observations = self._observe(materials, trial.repeats, oracle, logged=False)
        again, spread = self._second_run(references, oracle, observations)
        return Evidence(
            references,
            self.claims,
            observations,
            oracle,
            again,
            diagnose=self._diagnose,
            spread=spread,
            imprecise=imprecise,
        )

    def _second_run(
        self, references: References, first: Observation, observations: tuple[Observation, ...]
    ) -> tuple[Observation | None, dict[int, float]]:
        """Return a second run of plain autograd and its differences, if a trial has repeats or device sums may vary.

        If all values are bit-equal to the first run's, no second one is needed: there is no difference to explain.
        """
        if len(observations) == 1 and (self._oracle.trusted or agree(first, observations[0])):
            return None, {}
        again, spread = self._trust.observe_again(references, first)
        if not self._oracle.trusted and same_bits(observations) is False:
            for _ in range(_CHANCES):  # if the implementation differed from itself, plain autograd may too
                if spread:
                    break
                again, spread = self._trust.observe_again(references, first, anew=True)
        return again, spread

    def _observe(
        self, materials: Materials, repeats: int, oracle: Observation, *, logged: bool
    ) -> tuple[Observation, ...]:
        """Return ``repeats`` runs of the implementation; an allocation in between changes the next run's addresses.

        If it is bit-equal to plain autograd, the ``oracle``'s copies serve for both.
        """
        observations: list[Observation] = []
        ballast: list[object] = []
        for count in range(repeats):
            ballast += [object() for _ in range(37 * count % 101)]
            found = self._drive(materials, oracle, logged=logged)
            # The first import of a library may add warning filters and variables: a single change does not count as a
            # setting left changed.
            observations.append(
                self._drive(materials, oracle, logged=logged) if _left_changed(found, oracle) else found
            )
        del ballast
        return tuple(observations)

    def _drive(self, materials: Materials, oracle: Observation, *, logged: bool) -> Observation:
        way = drive_logged if logged else drive
        found = self._drive_once(materials, partial(way, known=oracle))
        if self._oracle.trusted:  # no second chance: the CPU does not fail
            return found
        raised = None if found.raised is None else found.raised.raised
        if raised is not None and raised.broken and self._drive_once(materials, drive).raised is None:
            msg = f"the implementation raised {raised}, and when it was run again it did not"
            raise DeviceLostError(msg, raised)
        return found

    def _drive_once(self, materials: Materials, way: Callable[[Adapter, Materials], Observation]) -> Observation:
        try:
            return way(self.target.adapter, materials)
        except NotClearedError:  # not a refused claim: how gradients elsewhere are cleared needs no explicit claim
            raise
        except UnsupportedError as error:
            raise TargetRefusedError(str(error)) from error

    @cached_property
    def claims(self) -> Capabilities:
        """The target's claims, without those that its gradients outside ``Parameter.grad`` do not meet in a test."""
        claims = self.target.capabilities
        if claims.grads_in_param_grad:
            return claims

        def observe(trial: Trial) -> Observation:
            return self._drive_once(Materials(trial, dtype=self.dtype, device=self.device, seed=self.seed), drive)

        lacking: dict[str, Any] = dict.fromkeys(unmet_claims(claims, observe), False)
        return replace(claims, **lacking)

    @cached_property
    def _adapter_problem(self) -> str | None:
        """Why a user's adapter fails its pre-flight; None if it passes."""
        return preflight(self.target, self.evidence) if self.target.own_adapter else None


def _left_changed(found: Observation, plain: Observation) -> bool:
    """Return whether an implementation changed the process, and differently from plain autograd."""
    for step, known in zip(found.steps, plain.steps, strict=False):
        if step.state is None or known.state is None or step.state.process == known.state.process:
            continue
        for name, value in step.state.process.items():
            if value not in {AS_BEFORE, known.state.process.get(name)}:
                return True
    return False


def _is_measured(plain: Observation) -> bool:
    """Return whether an implementation's operations are logged: if plain autograd's were, or its memory was counted."""
    return plain.executed is not None or plain.peak is not None


def _log_may_matter(plain: Observation, found: Observation) -> bool:
    """Return whether plain autograd has to be logged too, because an implementation's log shows a difference.

    The log may be its reason: it changes the results of some devices. An operation on the CPU may be the device's.
    """
    if plain.executed is not None or found.executed is None:
        return False
    return bool(found.executed.off_device) or not agree(plain, found)


def _off_device(device: torch.device, who: str, finding: Finding) -> dict[str, Any]:
    """Return the verdict if too little runs on the device: then the check tested another device."""
    if who == "device":
        text = f"{device} leaves operations to the CPU\n{finding}"
        return {"status": "error", "message": text, "findings": [finding]}
    return {"level": "MUST", "findings": [finding]}


def _device_fault(check: Check, error: DeviceFaultError) -> dict[str, Any]:
    """Return the verdict on a device that is wrong: it does not count against the implementation."""
    line = f"{check.tried}{UNDER_PLAIN_AUTOGRAD}"
    return {
        "status": "error",
        "kind": "device",
        "message": "\n".join([str(error), line, *map(str, error.findings)]),
        "findings": error.findings,
    }


def _not_called(evidence: Evidence) -> list[Action]:
    """Return the W of a trial that were not called because their I raised as intended."""
    steps = evidence.observation.steps
    called = {step.position for step in steps}
    raised = {(one.action.stage, one.action.mb) for one in steps if one.action.kind == "I" and one.raised is not None}
    return [
        action
        for position, action in enumerate(evidence.trial.actions)
        if action.kind == "W"
        and action.mb in evidence.trial.raising
        and (action.stage, action.mb) in raised
        and position not in called
    ]


def _noted(explanation: dict[str, Any], tried: Sequence[JudgedTrial]) -> dict[str, Any]:
    """Return an explanation with a note of the actions that a program has and that were not called."""
    left = next((found for one in tried if (found := _not_called(one.evidence))), None)
    if left is None:
        return explanation
    note = "; ".join(f"{one} was not called, because {replace(one, kind='I')} raised" for one in left)
    return {**explanation, "note": "\n".join(filter(None, [note, explanation.get("note")]))}


def _probed(unmet: list[str], findings: list[Finding], silent: list[Finding]) -> dict[str, object]:
    """Return the verdict on an unclaimed capability: a refusal is valid, a silent wrong number fails as if claimed.

    For an option it is a failed SHOULD: an implementation need not know the option. ``silent`` are the findings of the
    trials that refused nothing.
    """
    claim = f"not claimed: {', '.join(unmet)}"
    reported: dict[str, object] = {"unclaimed": tuple(unmet)}
    if not silent:
        text = f"{claim}; tried, and {'refused' if findings else 'right'}"
        return {**reported, "status": "unsupported", "message": text}
    if any(map(is_option, unmet)):
        reported["level"] = "SHOULD"
    lines = [f"{claim}; tried, and wrong without an error", *map(str, silent)]
    return {**reported, "message": "\n".join(lines), "findings": silent}
