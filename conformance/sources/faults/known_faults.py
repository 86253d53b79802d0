"""Runs the checks that must find a known fault, with the fault instead of the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gradconform.contract.check import Check
from gradconform.devices.device import device_of
from gradconform.devices.tensor_facts import facts_withheld
from gradconform.drive.oracle import Oracle
from gradconform.drive.reference64 import OracleCache
from gradconform.reference.faults import Fault
from gradconform.results import Result
from gradconform.run.measurements import Measurements
from gradconform.run.runner import Runner

from .outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCheck(Check):
    """A check that passes if one of ``finders``, tried in order, fails the ``fault``."""

    fault: Fault
    finders: tuple[Check, ...]


class KnownFaults:
    """The known faults of one device and dtype; plain autograd's results there are computed once for all of them."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        """Create a runner without cached results."""
        self.device, self.dtype, self._seed = device, dtype, seed
        self._oracles = OracleCache()

    @property
    def answers(self) -> bool:
        """Whether the device still computes."""
        return Oracle(self.device).answers

    def verdict_on(self, check: FaultCheck, error: BaseException) -> None:
        """Return None: the runner of a fault turns its errors into results."""

    def values(self, check: FaultCheck, measured: Measurements) -> dict[str, Any]:
        """Return whether the fault is found: passed if it fails a check, an error of the kit if it passes all."""
        del measured
        runner = Runner(
            check.fault.make(),
            device=self.device,
            dtype=self.dtype,
            seed=self._seed,
            diagnose=False,
            oracles=self._oracles,
        )
        held: list[Result] = []
        for finder in check.finders:
            held.append(runner.run(finder))
            if held[-1].status == "failed":
                break
        return self._verdict(check, held)

    def _verdict(self, check: FaultCheck, held: list[Result]) -> dict[str, Any]:
        verdict, lacking = _verdict(check, held), self._lacking(check.fault)
        if lacking is None or verdict.get("kind") != "kit":
            return verdict
        text = f"{self.device.type} {lacking}, so that this is not found there: {check.fault.idea}"
        return {"status": "unsupported", "kind": "environment", "message": text}

    def _lacking(self, fault: Fault) -> str | None:
        """Return the device feature that is missing to show a fault, None if all are there."""
        if fault.shows_by == "memory" and "address" in facts_withheld(self.device.type):
            return "shows no address of a tensor"
        if fault.shows_by == "denormals" and device_of(self.device).flushes_denormals:
            return "flushes denormals to 0"
        return None


def _verdict(check: FaultCheck, held: list[Result]) -> dict[str, Any]:
    outcome = Outcome.of("fault", check.fault.name, held, check.fault)
    if outcome.killed:
        return {"status": "passed"}
    for result in held:
        if result.status == "error":
            return {"status": "error", "kind": result.kind, "message": f"{result.check}: {result.message}"}
    refused = [result for result in held if result.status == "unsupported"]
    passed = ", ".join(result.check for result in held if result.status == "passed")
    if refused:
        first = refused[0]
        text = f"{first.check}, which may find it, is unsupported here: {first.message}"
        return {
            "status": "unsupported",
            "kind": first.kind,
            "message": f"{text}; it passed {passed}" if passed else text,
        }
    text = f"not found: {check.fault.idea} It passed {passed}; what passes here may be as wrong"
    return {"status": "error", "kind": "kit", "message": text}
