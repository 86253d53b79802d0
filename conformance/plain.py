"""Plain autograd on the device of a run: what it shows there, and whether the device can be trusted with it.

On the CPU plain autograd is what it is. Any other device is a third party: where it cannot do a trial nothing can be
judged, and where it gives wrong gradients it is the device that is wrong, whatever an implementation makes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from gradconform.adapter import Capabilities
from gradconform.dispatched import is_recorded
from gradconform.driver import drive
from gradconform.evidence import Evidence
from gradconform.judge.device import device_faults
from gradconform.judge.finding import Finding
from gradconform.judge.gradients import gradients
from gradconform.materials import Materials
from gradconform.numerics import long_sum_fault
from gradconform.observation import Observation, Raised
from gradconform.oracle_cache import OracleCache
from gradconform.program import undeferred
from gradconform.recording import drive_recorded
from gradconform.reference.autograd import AutogradAdapter
from gradconform.spread import spread_of
from gradconform.suspect import suspect

_CPU = torch.device("cpu")

#: Exceptions that say nothing of an operation: the device is out of memory, or gone.
BROKEN = frozenset({"OutOfMemoryError", "AcceleratorError"})


#: What is wrong with a device, in one sentence, and the first wrong tensor.
Verdict = tuple[str, tuple[Finding, ...]]


class OracleError(Exception):
    """Plain autograd raised: the device or dtype cannot do what the trial asks."""


class DeviceLostError(Exception):
    """The device fails at one time what it does at another, or no longer answers: nothing it says can be judged."""


class DeviceFaultError(Exception):
    """Plain autograd gives wrong gradients on the device. ``findings`` has the first wrong tensor."""

    def __init__(self, text: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(text)
        self.findings = findings


class PlainAutograd:
    """Plain autograd on one device and dtype, through the driver that implementations go through."""

    def __init__(self, device: torch.device, oracles: OracleCache | None = None) -> None:
        """``oracles`` holds what is known already, of whatever target it was computed for."""
        self._device, self._oracles = device, oracles
        self.trusted = device.type == "cpu"
        self._adapter = AutogradAdapter()
        self._long_sums: dict[torch.dtype, Verdict | None] = {}

    def observe(self, materials: Materials, scale: float) -> Observation:
        """Return what plain autograd shows, once the device is known to be right about it.

        Raises :class:`OracleError`, :class:`DeviceLostError` and :class:`DeviceFaultError`.
        """
        found: Observation = self._known(materials, scale, "first", lambda: self._drive(materials, scale))
        if not self.trusted:
            self._raise_for_long_sums(materials.dtype)
            self._hold_against_the_cpu(materials, scale, found, "faults")
        return found

    def again(
        self, materials: Materials, scale: float, first: Observation, *, anew: bool = False
    ) -> tuple[Observation, dict[int, float]]:
        """Return what another run shows, after the implementation's, and how far it is from the first.

        The device has to be right still. ``anew`` takes none that is known. Raises as :meth:`observe` does.
        """
        found: Observation
        if anew:
            found = self._drive_again(materials, scale)
        else:
            found = self._known(materials, scale, "again", lambda: self._drive_again(materials, scale))
        spread = {} if self.trusted else spread_of(first, found)
        if spread:
            self._hold_against_the_cpu(materials, scale, found, "faults again")
            self._hold_against_the_first(materials, scale, first, found)
        return found, spread

    def undeferred_peak(self, materials: Materials, scale: float) -> int | None:
        """Return the memory that plain autograd takes with B in place of I and W, None where that is no program."""
        program = undeferred(materials.trial.actions)
        if program is None or not is_recorded(materials):
            return None
        peak: int | None = self._known(materials, scale, "undeferred", lambda: self._peak_of(materials, scale, program))
        return peak

    def _peak_of(self, materials: Materials, scale: float, program: str) -> int | None:
        trial = replace(materials.trial, program=program, watch=frozenset())
        own = Materials(trial, dtype=materials.dtype, device=self._device, seed=materials.seed)
        found = self._drive_once(own, scale)
        return None if found.raised is not None or found.executed is None else found.executed.peak

    def _known(self, materials: Materials, scale: float, what: str, make: Callable[[], Any]) -> Any:
        return make() if self._oracles is None else self._oracles.of(materials, scale, what, make)

    def _drive(self, materials: Materials, scale: float) -> Observation:
        found = self._drive_once(materials, scale)
        if found.raised is None:
            return found
        problem = f"{found.raised.raised} at {found.raised.action}"
        if not self.trusted:
            self._raise_if_lost(problem, found.raised.raised)
            if self._drive_once(materials, scale).raised is None:
                msg = f"plain autograd raised {problem}, and when it was run again it did not"
                raise DeviceLostError(msg)
        raise OracleError(problem)

    def _drive_once(self, materials: Materials, scale: float) -> Observation:
        try:
            return drive_recorded(self._adapter, materials, loss_scale=scale)
        except NotImplementedError as error:
            raise OracleError(str(error)) from error

    def _drive_again(self, materials: Materials, scale: float) -> Observation:
        found = self._drive_once(materials, scale)
        if found.raised is not None and not self.trusted:
            msg = f"plain autograd ran, and after the implementation it raised {found.raised.raised}"
            raise DeviceLostError(msg)
        return found

    def _raise_if_lost(self, problem: str, raised: Raised | None) -> None:
        """Raise :class:`DeviceLostError` where the device is out of memory, or does not even add two numbers."""
        if (raised is not None and raised.type in BROKEN) or not self.answers:
            msg = f"plain autograd raised {problem}"
            raise DeviceLostError(msg)

    @property
    def answers(self) -> bool:
        """Whether the device still adds 1 and 1."""
        try:
            return bool((torch.ones(2).to(self._device) + 1.0).cpu().tolist() == [2.0, 2.0])
        except RuntimeError:
            return False

    def _hold_against_the_cpu(self, materials: Materials, scale: float, found: Observation, what: str) -> None:
        verdict = self._known(materials, scale, what, lambda: self._verdict(materials, scale, found))
        if verdict is not None:
            raise DeviceFaultError(*verdict)

    def _hold_against_the_first(
        self, materials: Materials, scale: float, first: Observation, found: Observation
    ) -> None:
        """Raise :class:`DeviceFaultError` where two runs from one seed drew other random numbers."""
        evidence = Evidence(materials.trial, _CLAIMS, materials, (found,), first, scale)
        evidence.diagnose, evidence.place = False, self._device
        faults = tuple(gradients(evidence)) if evidence.draws else ()
        if faults:
            dtype = str(materials.dtype).removeprefix("torch.")
            msg = f"random numbers do not depend on the seed alone on {self._device} in {dtype}"
            raise DeviceFaultError(msg, faults)

    def _raise_for_long_sums(self, dtype: torch.dtype) -> None:
        if dtype not in self._long_sums:
            fault = long_sum_fault(self._device, dtype)
            name = str(dtype).removeprefix("torch.")
            self._long_sums[dtype] = fault and (
                f"{fault[0]} is wrong on {self._device} in {name}",
                (Finding("mismatch", "a long sum", "", fault[1]),),
            )
        verdict = self._long_sums[dtype]
        if verdict is not None:
            raise DeviceFaultError(*verdict)

    def _verdict(self, materials: Materials, scale: float, found: Observation) -> Verdict | None:
        """Return what is wrong with the device: in one sentence, and the first wrong tensor."""
        own = Materials(materials.trial, dtype=materials.dtype, device=_CPU, seed=materials.seed)
        here = self._known(materials, scale, "cpu", lambda: drive(self._adapter, own, loss_scale=scale))
        if here.raised is not None:
            msg = f"{here.raised.raised} on the CPU, so that there is nothing to hold {self._device} against"
            raise OracleError(msg)
        evidence = Evidence(materials.trial, _CLAIMS, own, (found,), here, scale)
        evidence.diagnose, evidence.place = False, self._device
        if self._oracles is not None:
            evidence.known = self._oracles.grads(materials, scale)
        faults = tuple(device_faults(evidence))
        return self._told(materials, scale, faults) if faults else None

    def _told(self, materials: Materials, scale: float, faults: tuple[Finding, ...]) -> Verdict:
        dtype = str(materials.dtype).removeprefix("torch.")
        culprit = suspect(materials, scale) if faults[0].kind != "device" else None
        if culprit is None:
            what = "leaves tensors elsewhere" if faults[0].kind == "device" else "is wrong, no operation by itself"
            return f"plain autograd {what} on {self._device} in {dtype}", faults
        told = tuple(replace(fault, cause=str(culprit)) for fault in faults)
        return f"{culprit.name} is wrong on {self._device} in {dtype}", told


_CLAIMS = Capabilities.from_mapping(AutogradAdapter.capabilities)
