"""Runs the oracles on operations: they judge the device, whatever the target is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from gradconform.contract.extra_ids import ADDITIVE, ALONE, FINITE_DIFFERENCES, LAYOUT
from gradconform.coverage import NOTHING
from gradconform.devices.device import device_of
from gradconform.drive.oracle import DeviceLostError, Oracle, OracleError, WatchError
from gradconform.drive.single_operation import OperationError
from gradconform.judge.additivity import additivity_of
from gradconform.judge.device_trust import DeviceTrust
from gradconform.judge.finding import Finding
from gradconform.judge.finite_differences import slopes_of
from gradconform.judge.kernel_edges import EdgeFault, edges_of
from gradconform.judge.operation_alone import alone_of
from gradconform.judge.operation_layouts import layouts_of
from gradconform.judge.oracle_result import COPIED_WRONG, OracleResult, combined
from gradconform.run import samples
from gradconform.run.measurements import Measurements
from gradconform.text.escaping import shortened
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

from .oracle_checks import OracleCheck

#: The judge of a sample, by the name of the oracle.
_JUDGES: Mapping[str, Callable[[Materials], OracleResult]] = MappingProxyType(
    {LAYOUT: layouts_of, FINITE_DIFFERENCES: slopes_of, ADDITIVE: additivity_of}
)


class OperationOracles:
    """The oracles of one device and dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        """Store the device, dtype and seed."""
        self.device, self.dtype, self._seed = device, dtype, seed
        self._oracle = Oracle(device)
        self._trust = DeviceTrust(self._oracle)

    @property
    def answers(self) -> bool:
        """Whether the device still computes."""
        return self._oracle.answers

    def verdict_on(self, check: OracleCheck, error: BaseException) -> dict[str, Any] | None:
        """Return the verdict on a check if the device was lost, or the kit's own code raised; else None."""
        del check
        if isinstance(error, DeviceLostError):
            return {"status": "error", "kind": "environment", "message": f"{self.device} failed: {error}"}
        if isinstance(error, WatchError):
            text = f"{error}; {self.device} is not charged with it"
            return {"status": "error", "kind": "kit", "message": text}
        return None

    def values(self, check: OracleCheck, measured: Measurements) -> dict[str, Any]:
        """Return the verdict: an error of the device if a sample is wrong, unsupported if none could be judged."""
        values = self._verdict(check, measured)
        if values.get("status") in {"error", "unsupported"} and not self.answers:
            return {"status": "error", "kind": "environment", "message": f"{self.device} failed: {values['message']}"}
        return values

    def _verdict(self, check: OracleCheck, measured: Measurements) -> dict[str, Any]:
        if check.oracle == ALONE:
            return self._alone(check, measured)
        return self._at_edges(check) if check.edges else self._on_trials(check)

    def _at_edges(self, check: OracleCheck) -> dict[str, Any]:
        """Compare the kernels of the kit's own samples; each wrong one is reported, on its smallest failing sample."""
        found: list[OracleResult] = []
        raised: list[str] = []
        faults: dict[str, list[EdgeFault]] = {}
        for sample in check.samples:
            try:
                compared = edges_of(sample, self.device, self.dtype, self._seed)
            except Exception as error:  # noqa: BLE001 (an operation raises whatever it does)
                raised.append(f"{type(error).__name__}: {error}")
                found.append(OracleResult(not_tried={"the operation raises": [sample.text]}))
                continue
            found.append(compared.result)
            for fault in compared.faults:
                faults.setdefault(fault.cause.names[0], []).append(fault)
        oracle, tried = combined(found), len(check.samples) - len(raised)
        smallest = [min(several, key=lambda one: one.cause.elements or 0) for several in faults.values()]
        counts = map(len, faults.values())
        findings = [one.finding(count, tried) for one, count in zip(smallest, counts, strict=True)]
        return self._ended(oracle, findings, raised, judged=bool(oracle["compared"]))

    def _on_trials(self, check: OracleCheck) -> dict[str, Any]:
        found: list[OracleResult] = []
        by_trial: list[tuple[Trial, list[Finding]]] = []
        raised: list[str] = []
        for trial in check.trials:
            materials = Materials(trial, dtype=self.dtype, device=self.device, seed=self._seed)
            try:
                found.append(self._trusted(_JUDGES[check.oracle](materials), check, trial))
            except OperationError as error:
                raised.append(f"{type(error.__cause__).__name__}: {error.__cause__}")
                found.append(OracleResult(not_tried={"the operation raises": [trial.stages[0].name]}))
            by_trial.append((trial, [one for one in (found[-1].finding,) if one is not None]))
        oracle = combined(found)
        findings = samples.reported_findings(check, by_trial)
        return self._ended(oracle, findings, raised, judged=bool(oracle["compared"]))

    def _trusted(self, result: OracleResult, check: OracleCheck, trial: Trial) -> OracleResult:
        """Return a sample's result; without a finding that may come from the device's copies of rows and arguments.

        The oracle of layouts itself looks at its copies.
        """
        if result.finding is None or check.oracle == LAYOUT or not device_of(self.device).wrong_copies:
            return result
        return OracleResult(not_tried={COPIED_WRONG: [trial.stages[0].name]})

    def _alone(self, check: OracleCheck, measured: Measurements) -> dict[str, Any]:
        """Compare the samples, run alone, with the CPU; the first one also in other layouts."""
        found: list[OracleResult] = []
        by_trial: list[tuple[Trial, tuple[Finding, ...]]] = []
        raised: list[str] = []
        texts: list[str] = []
        for trial in check.trials:
            materials = Materials(trial, dtype=self.dtype, device=self.device, seed=self._seed)
            try:
                alone = alone_of(materials, self._oracle, self._trust, in_layouts=trial is check.trials[0])
            except (OperationError, OracleError) as error:
                cause = error.__cause__ if isinstance(error, OperationError) else None
                raised.append(str(error) if cause is None else f"{type(cause).__name__}: {cause}")
                found.append(OracleResult(not_tried={"the operation raises": [trial.stages[0].name]}))
                continue
            found.append(alone.result)
            by_trial.append((trial, alone.findings))
            texts += [alone.text] if alone.findings else []
            measured.own += alone.executed
            measured.imprecise.update(alone.imprecise)
        oracle = combined(found)
        findings = samples.reported_findings(check, by_trial)
        return self._ended(oracle, findings, raised, judged=not raised, text=texts[0] if texts else "")

    def _ended(
        self, oracle: dict[str, Any], findings: list[Finding], raised: list[str], *, judged: bool, text: str = ""
    ) -> dict[str, Any]:
        """Return the verdict on a comparison: wrong by its findings, or unsupported unless it ``judged`` something."""
        if findings:
            return {**self._wrong(findings, text), "oracle": oracle}
        return {"oracle": oracle} if judged else {**_nothing(oracle["not_tried"], raised), "oracle": oracle}

    def _wrong(self, findings: list[Finding], text: str) -> dict[str, Any]:
        place = f"{self.device} in {str(self.dtype).removeprefix('torch.')}"
        first = text or f"{findings[0].where} is wrong on {place}"
        text = "\n".join([first, *map(str, findings)])
        return {"status": "error", "kind": "device", "message": text, "findings": findings}


def _nothing(not_tried: Mapping[str, list[str]], raised: list[str]) -> dict[str, Any]:
    """Return the verdict if nothing could be compared."""
    if raised:
        text = f"plain autograd on this device raised {raised[0]}"
        return {"status": "unsupported", "kind": "environment", "message": shortened(text)}
    return {"status": "unsupported", "kind": NOTHING, "message": f"nothing to compare: {'; '.join(not_tried)}"}
