"""Runs the checks on operations that need no second device: they judge the device, whatever the target is."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from gradconform.contract.extra_ids import ADDITIVE, FINITE_DIFFERENCES, LAYOUT
from gradconform.contract.on_oracle import OracleCheck
from gradconform.coverage import NOTHING
from gradconform.devices.device import device_of
from gradconform.drive.oracle import Oracle
from gradconform.drive.single_operation import OperationError
from gradconform.judge.additivity import additivity_of
from gradconform.judge.finding import Finding
from gradconform.judge.finite_differences import slopes_of
from gradconform.judge.operation_layouts import layouts_of
from gradconform.judge.oracle_result import OracleResult, together
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.results import Result
from gradconform.text.escaping import shortened
from gradconform.tolerance import tolerances_of
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

from . import samples
from .runner import one_thread

#: The judge of a sample, by the name of the oracle.
_JUDGES: Mapping[str, Callable[[Materials], OracleResult]] = MappingProxyType(
    {LAYOUT: layouts_of, FINITE_DIFFERENCES: slopes_of, ADDITIVE: additivity_of}
)


class OperationOracles:
    """The oracles of one device and dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        """Store the device, dtype and seed."""
        self._device, self._dtype, self._seed = device, dtype, seed

    def run(self, check: OracleCheck) -> Result:
        """Return the result: an error of the device if a sample is wrong, unsupported if no sample could be judged."""
        started = time.perf_counter()
        try:
            with interrupts_seen(), one_thread(), tolerances_of(device_of(self._device).tolerances):
                values = self._values(check)
        except BaseException as error:  # noqa: BLE001 (a crash of the kit has its own verdict, never a pass)
            pass_on_an_interrupt(error)
            text = "".join(traceback.format_exception(error)[-3:]).strip()
            values = {"status": "error", "kind": "kit", "message": shortened(f"the kit failed: {text}")}
        if values.get("status") in {"error", "unsupported"} and not Oracle(self._device).answers:
            text = f"{self._device} failed: {values['message']}"
            values = {"status": "error", "kind": "environment", "message": shortened(text)}
        taken = round(time.perf_counter() - started, 6)
        dtype = str(self._dtype).removeprefix("torch.")
        return check.result(str(self._device), dtype, duration_s=taken, **values)

    def _values(self, check: OracleCheck) -> dict[str, Any]:
        found: list[OracleResult] = []
        by_trial: list[tuple[Trial, list[Finding]]] = []
        raised: list[str] = []
        for trial in check.trials:
            materials = Materials(trial, dtype=self._dtype, device=self._device, seed=self._seed)
            try:
                found.append(_JUDGES[check.oracle](materials))
            except OperationError as error:
                raised.append(f"{type(error.__cause__).__name__}: {error.__cause__}")
                found.append(OracleResult(not_tried={"the operation raises": [trial.stages[0].name]}))
            by_trial.append((trial, [one for one in (found[-1].finding,) if one is not None]))
        oracle = together(found)
        findings = samples.reported_findings(check, by_trial)
        if findings:
            return {**self._wrong(findings), "oracle": oracle}
        if not oracle["compared"]:
            return {**_nothing(oracle["not_tried"], raised), "oracle": oracle}
        return {"oracle": oracle}

    def _wrong(self, findings: list[Finding]) -> dict[str, Any]:
        place = f"{self._device} in {str(self._dtype).removeprefix('torch.')}"
        text = "\n".join([f"{findings[0].where} is wrong on {place}", *map(str, findings)])
        return {"status": "error", "kind": "device", "message": text, "findings": findings}


def _nothing(not_tried: Mapping[str, list[str]], raised: list[str]) -> dict[str, Any]:
    """Return the verdict if nothing could be compared."""
    if raised:
        text = f"plain autograd on this device raised {raised[0]}"
        return {"status": "unsupported", "kind": "environment", "message": shortened(text)}
    return {"status": "unsupported", "kind": NOTHING, "message": f"nothing to compare: {'; '.join(not_tried)}"}
