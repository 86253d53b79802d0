"""Decides whether a device can be trusted with a trial, by judging plain autograd there before any implementation.

On the CPU plain autograd is the reference. Any other device is a third party. If it cannot do a trial, nothing can be
judged. If it gives wrong gradients, the device is wrong, whatever an implementation makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from gradconform.adapter import Capabilities
from gradconform.devices.copies import WrongCopyError
from gradconform.devices.device import denormals_as, device_of
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Observation, Step
from gradconform.drive.oracle import Oracle, OracleError, replaced
from gradconform.drive.reference64 import References
from gradconform.drive.watches import on_cpu
from gradconform.reference.autograd import AutogradAdapter
from gradconform.tolerance import FAR, Partials, judge, rooms_of
from gradconform.trees import equal, tensors
from gradconform.trial.materials import Materials
from gradconform.trial.modes import AUTOCAST

from .accumulated_rounding import RUNS, with_errors
from .device_precision import Imprecise, rooms_for
from .finding import Finding, Judged, Measured, error_in, findings_in
from .gradients import gradients
from .oracle_result import COPIED_WRONG
from .slopes import another_backward
from .values import same_bits
from .wrong_operation import Operations, operations_of

#: The fault of a device in one sentence, and the first wrong tensor.
Verdict = tuple[str, tuple[Finding, ...]]

_CLAIMS = Capabilities.from_mapping(AutogradAdapter.capabilities)


class DeviceFaultError(Exception):
    """Plain autograd gives wrong gradients on the device. ``findings`` has the first wrong tensor."""

    def __init__(self, text: str, findings: tuple[Finding, ...]) -> None:
        super().__init__(text)
        self.findings = findings


class DeviceTrust:
    """Observations of the oracle on a device that computes them correctly; else :class:`DeviceFaultError` is raised."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle, self._device = oracle, oracle.device
        self._long_sums: dict[torch.dtype, Verdict | None] = {}

    def observe(self, references: References, *, logged: bool = False) -> tuple[Observation, Mapping[str, float]]:
        """Return plain autograd's observation, and the error in eps of each operation that is imprecise but not wrong.

        With ``logged``, its operations are logged, unless the log itself makes the device wrong. Raises also as
        :meth:`gradconform.drive.oracle.Oracle.observe` does.
        """
        found = self._oracle.observe_logged(references) if logged else self._oracle.observe(references)
        if self._oracle.trusted:
            return found, {}
        long_sums = self._of_long_sums(references.materials.dtype)
        try:
            imprecise = self._hold_against_the_cpu(references, found, "faults logged" if logged else "faults")
        except DeviceFaultError as fault:
            if long_sums is not None:
                raise DeviceFaultError(long_sums[0], (*long_sums[1], *fault.findings)) from fault
            plain = self._oracle.observe_unlogged(references) if self._log_matters(references, found) else None
            if plain is None:
                raise
            found, imprecise = plain, self._hold_against_the_cpu(references, plain, "faults unlogged")
        if long_sums is not None:
            raise DeviceFaultError(*long_sums)
        return found, {one.operation: one.eps for one in imprecise}

    def _log_matters(self, references: References, found: Observation) -> bool:
        """Return whether the log of operations changes the device's results, and in the same way each time."""
        if found.executed is None:
            return False
        plain = self._oracle.observe_unlogged(references)
        if plain.raised is not None or not spread_of(found, plain):
            return False
        return not spread_of(found, self._oracle.observe_again(references, found, anew=True))

    def observe_again(
        self, references: References, first: Observation, *, anew: bool = False
    ) -> tuple[Observation, dict[int, float]]:
        """Return the observation of a later run, and its largest difference from the first, per tensor.

        The run follows the implementation's, and the device must still be right. ``anew`` uses no stored observation.
        Raises as :meth:`observe` does.
        """
        found = self._oracle.observe_again(references, first, anew=anew)
        spread = {} if self._oracle.trusted else spread_of(first, found)
        if spread:
            self._hold_against_the_cpu(references, found, "faults again")
            self._hold_against_the_first(references, first, found)
        return found, spread

    def _hold_against_the_cpu(self, references: References, found: Observation, what: str) -> tuple[Imprecise, ...]:
        """Return the operations that are imprecise; raise :class:`DeviceFaultError` if one is wrong."""
        verdict, imprecise = self._oracle.known(references, what, lambda: self._verdict(references, found))
        if verdict is not None:
            raise DeviceFaultError(*verdict)
        return tuple(imprecise)

    def _hold_against_the_first(self, references: References, first: Observation, found: Observation) -> None:
        """Raise :class:`DeviceFaultError` if two runs from one seed drew different random numbers."""
        evidence = self._evidence(references, found, first)
        faults = tuple(findings_in(gradients(evidence))) if evidence.draws else ()
        if faults:
            msg = f"random numbers do not depend on the seed alone on {self._place(references.materials.dtype)}"
            raise DeviceFaultError(msg, faults)

    def _of_long_sums(self, dtype: torch.dtype) -> Verdict | None:
        if dtype not in self._long_sums:
            fault = long_sum_fault(self._device, dtype)
            self._long_sums[dtype] = fault and self._of_long_sum(dtype, *fault)
        return self._long_sums[dtype]

    def _of_long_sum(self, dtype: torch.dtype, operation: str, reported: str) -> Verdict:
        cause = Cause(Mistake.OPERATION_WRONG, names=(operation, f"{_LENGTH} ones", reported))
        finding = Finding("mismatch", "a long sum", "", "gives wrong values", cause=cause)
        return f"{operation} is wrong on {self._place(dtype)}", (finding,)

    def _verdict(self, references: References, found: Observation) -> tuple[Verdict | None, tuple[Imprecise, ...]]:
        """Return the device's fault if any, else its imprecise operations."""
        here = self._oracle.observe_on_cpu(references)
        if here.raised is not None:
            msg = f"{here.raised.raised} on the CPU, so that there is nothing to hold {self._device} against"
            raise OracleError(msg, here.raised.raised)
        if references.materials.trial.modes & AUTOCAST:
            found = _in_the_dtypes_of(here, found)
        evidence = self._evidence(references, found, here)
        faults = tuple(findings_in(device_faults(evidence)))  # for a device that computes as IEEE says
        if faults and faults[0].kind == "device":
            reported = f"plain autograd leaves tensors elsewhere on {self._place(references.materials.dtype)}"
            return (reported, faults), ()
        imprecise: tuple[Imprecise, ...] = ()
        if faults:
            operations = operations_of(references)
            profile = device_of(self._device).numerics
            with rooms_of(rooms_for(profile, operations.names, operations.imprecise)):
                faults = tuple(findings_in(device_faults(evidence)))
                if faults and not _accuses(operations):
                    spread = self._accumulated(references, here, operations)
                    faults = tuple(findings_in(device_faults(replace(evidence, spread=spread))))
            if faults:
                return self._decide(references, faults, operations), ()
            imprecise = operations.imprecise
        return self._drawn(references) if evidence.draws else None, imprecise

    def _accumulated(self, references: References, here: Observation, operations: Operations) -> dict[int, float]:
        """Return the errors of the CPU's tensors if each operation has its error on the device."""
        materials, found = replaced(references.materials, torch.device("cpu")), dict[int, float]()
        for seed in range(RUNS):
            with denormals_as(device_of(self._device).flushes_denormals):
                off = with_errors(materials, references.loss_scale, operations.errors, operations.roughest, seed)
            for tensor, difference in spread_of(here, off).items():
                found[tensor] = max(difference, found.get(tensor, 0.0))
        return found

    def _drawn(self, references: References) -> Verdict | None:
        """Return the fault of an operation in a stage that draws random numbers.

        The device draws different numbers, so the stage's results cannot be compared as a whole. The other operations
        must match the CPU's, and the backward its forward.
        """
        materials = references.materials
        operations = operations_of(references, twice=True)
        culprit = operations.wrong if _accuses(operations) else None
        if culprit is None:
            culprit = another_backward(materials, replaced(materials, torch.device("cpu")))
        if culprit is None:
            return None
        findings = tuple(map(_of_operation, (culprit, *operations.also_wrong)))
        return f"{culprit.names[0]} is wrong on {self._place(references.materials.dtype)}", findings

    def _evidence(self, references: References, found: Observation, oracle: Observation) -> Evidence:
        return Evidence(references, _CLAIMS, (found,), oracle, diagnose=False, device=self._device)

    def _decide(self, references: References, faults: tuple[Finding, ...], operations: Operations) -> Verdict:
        place, culprit = self._place(references.materials.dtype), operations.wrong
        if not _accuses(operations) and (operations.miscopied or _arrives_changed(references.materials)):
            msg = f"values differ from the CPU's on {place}, no operation is wrong alone, and {COPIED_WRONG}"
            raise WrongCopyError(msg)
        if culprit is None:
            return f"plain autograd is wrong on {place}, but no single operation is", faults
        if culprit.kind is Mistake.OPERATION_OF_ITS_OWN:
            hint = f"operations that only this device has, not compared: {', '.join(culprit.names)}"
            return f"plain autograd is wrong on {place}, and no single operation was found wrong; {hint}", faults
        reported = tuple(replace(fault, cause=culprit) for fault in faults)
        return f"{culprit.names[0]} is wrong on {place}", (*reported, *map(_of_operation, operations.also_wrong))

    def _place(self, dtype: torch.dtype) -> str:
        return f"{self._device} in {str(dtype).removeprefix('torch.')}"


def _accuses(operations: Operations) -> bool:
    """Return whether an operation was found wrong; one that the CPU lacks was not compared."""
    return operations.wrong is not None and operations.wrong.kind is Mistake.OPERATION_WRONG


def _arrives_changed(materials: Materials) -> bool:
    """Return whether a device that copies wrong has other parameters or arguments than the CPU."""
    if not device_of(materials.device).wrong_copies:
        return False
    both = materials, replaced(materials, torch.device("cpu"))
    return any(
        not same_bits(on_cpu(there), here)
        for lane in range(len(materials.trial.stages))
        for there, here in zip(*(_placed(one, lane) for one in both), strict=True)
    )


def _placed(materials: Materials, lane: int) -> list[Tensor]:
    """Return the parameters, buffers and first arguments of a stage."""
    stage = materials.stage(lane)
    held = [*stage.parameters(), *stage.buffers(), *tensors(materials.args(lane, 0, stage))]
    return [one.detach() for one in held]


def _of_operation(cause: Cause) -> Finding:
    """Return the finding of a wrong operation; its cause has the values."""
    return Finding("mismatch", cause.names[0], "", "gives wrong values", cause=cause)


def _in_the_dtypes_of(here: Observation, found: Observation) -> Observation:
    """Return the observation ``found`` with its outputs in the dtypes of ``here``."""
    steps = [
        replace(step, outputs=tuple(map(_cast, step.outputs, known.outputs)))
        if step.outputs is not None and known.outputs is not None and len(step.outputs) == len(known.outputs)
        else step
        for step, known in zip(found.steps, here.steps, strict=False)
    ]
    return replace(found, steps=tuple(steps))


def _cast(got: Any, known: Any) -> Any:
    both = isinstance(got, Tensor) and isinstance(known, Tensor)
    return got.to(known.dtype) if both and got.is_floating_point() and known.is_floating_point() else got


def device_faults(evidence: Evidence) -> Judged:
    """Yield the values of plain autograd on the device whose errors cannot be rounding.

    ``evidence`` has the device's runs of plain autograd as observations, and the CPU's as the oracle. If the stage
    draws random numbers, the device draws different ones, and only the devices of its tensors are judged.
    """
    for observation in evidence.observations:
        for step in observation.steps:
            for (sort, where), device in step.misplaced.items():
                text = f"sits on {device} although the whole stage was put on {evidence.device}"
                yield Finding("device", where, str(step.action), text, sort=sort)
                return
    if not evidence.draws:
        for seen in gradients(evidence):
            if isinstance(seen, Measured) or seen.raised is None:
                yield seen
            else:
                yield error_in(seen.action, seen.raised, reference="on the CPU it does not")


#: The ones add up to 256 in bfloat16, and to 2048 in float16, if every partial sum is rounded to the dtype.
_LENGTH = 4096

_SUMS: dict[str, Callable[[Tensor], Tensor]] = {
    "aten::mm": lambda ones: ones.reshape(1, -1) @ ones.reshape(-1, 1),
    "aten::sum": lambda ones: ones.sum(),
}


def long_sum_fault(device: torch.device, dtype: torch.dtype) -> tuple[str, str] | None:
    """Return the operation that adds many ones up wrong on ``device``, and its result; None if none does.

    An operation that the device does not support is not wrong.
    """
    for name, add in _SUMS.items():
        ones = torch.ones(_LENGTH, dtype=dtype)
        try:
            got = device_of(device).to_cpu(add(ones.to(device)))
        except (RuntimeError, TypeError):  # a check that needs it reports it
            continue
        wanted = add(ones)
        if not judge(got, wanted, add(ones.double()), Partials(), factor=FAR).passed:
            return name, f"it adds {_LENGTH} ones up to {float(got):g}, the CPU to {float(wanted):g}"
    return None


def spread_of(one: Observation, other: Observation) -> dict[int, float]:
    """Return the largest difference per tensor of ``one``, by its id; bit-equal tensors are skipped."""
    found: dict[int, float] = {}
    for first, second in zip(one.steps, other.steps, strict=False):
        for a, b in zip(_values(first), _values(second), strict=False):
            if isinstance(a, Tensor) and isinstance(b, Tensor) and a is not b:
                difference = _distance(a, b)
                if difference:
                    found[id(a)] = max(difference, found.get(id(a), 0.0))
    return found


def agree(one: Observation, other: Observation) -> bool:
    """Return whether two runs finished and each tensor of ``one`` has the same bits in ``other``."""
    if one.raised is not None or other.raised is not None or len(one.steps) != len(other.steps):
        return False
    return all(
        a is b or not isinstance(a, Tensor) or same_bits(a, b)
        for first, second in zip(one.steps, other.steps, strict=True)
        for group, others in zip(_groups(first), _groups(second), strict=True)
        for a, b in zip_longest(group, others)
    )


def _values(step: Step) -> Iterator[Any]:
    for group in _groups(step):
        yield from group


def _groups(step: Step) -> Iterator[Iterable[Any]]:
    for group in (step.outputs, (step.loss,), step.input_grads, step.arg_grads, step.weight_result):
        yield group or ()
    yield step.param_grads.values()
    yield () if step.state is None else step.state.buffers.values()


def _distance(one: Tensor, other: Tensor) -> float:
    """Return max|one - other| over the elements that are finite in both."""
    if one.layout != torch.strided or other.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if one.shape != other.shape or equal(one, other) or not one.numel():
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    difference = (one.to(wide) - other.to(wide)).abs()
    return float(torch.where(torch.isfinite(difference), difference, 0.0).max())
