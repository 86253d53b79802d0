"""Compares an operation that runs alone on a device with the CPU: outputs and gradients, also in other layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradconform.devices.device import denormals_as, device_of
from gradconform.drive.driver import NO_LOG
from gradconform.drive.observation import Executed
from gradconform.drive.operation_log import OperationLog, is_logged
from gradconform.drive.oracle import Oracle, replaced
from gradconform.drive.single_operation import Arranged, OperationError, SingleOperation
from gradconform.drive.watches import on_cpu, sits_on
from gradconform.trial.materials import Materials

from .device_trust import DeviceFaultError, DeviceTrust
from .finding import Finding
from .kernel_results import agrees
from .operation_layouts import arranged_in, copied, layouts_of
from .oracle_result import OracleResult

_CPU = torch.device("cpu")

#: The layouts that are tried beside contiguous: gaps between elements, and the first of the others that fits.
_GAPS, _ORDERS = "strided", ("channels_last", "channels_last_3d", "transposed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneCompared:
    """The comparison of one sample: its ``result``, all ``findings``, and a fault of the device as ``text``.

    ``executed`` are the operations of the first run, and ``imprecise`` those that err by more than IEEE rounding.
    """

    result: OracleResult
    findings: tuple[Finding, ...] = ()
    text: str = ""
    executed: Executed = field(default_factory=Executed)
    imprecise: dict[str, float] = field(default_factory=dict)


def alone_of(materials: Materials, oracle: Oracle, trust: DeviceTrust, *, in_layouts: bool) -> AloneCompared:
    """Return the comparison of a sample, the first stage of the trial of ``materials``, with the CPU.

    Equal values need no more work. Others may still be right, such as singular vectors of another sign, so plain
    autograd on the whole stage decides, with all of its explanations. With ``in_layouts``, the arguments also have two
    other layouts; if values differ there, each kernel is compared with itself. Raises
    :class:`~gradconform.drive.single_operation.OperationError` if the operation raises, and what ``trust`` raises
    except :class:`~gradconform.judge.device_trust.DeviceFaultError`.
    """
    here, there = SingleOperation(materials), SingleOperation(replaced(materials, _CPU))
    name = materials.trial.stages[0].name
    log = OperationLog(materials.device) if is_logged(materials) else None
    with denormals_as(device_of(materials.device).flushes_denormals):
        wanted = there.run(copied, copied, NO_LOG)
    found = here.run(copied, copied, log or NO_LOG)
    right = AloneCompared(
        result=OracleResult(compared=len(wanted), tried=frozenset([name])),
        executed=Executed() if log is None else log.executed(),
    )
    stays = all(sits_on(one.device, materials.device) for one in found if one is not None)
    if not (stays and _agree(found, wanted)):
        try:
            _, imprecise = trust.observe(oracle.references(materials, 1.0))
        except DeviceFaultError as fault:
            return replace(right, findings=fault.findings, text=str(fault))
        return replace(right, imprecise=dict(imprecise))
    if in_layouts and "rng" not in materials.trial.stages[0].traits and not _agrees_in_layouts(here, there, wanted):
        one = layouts_of(materials).finding
        return right if one is None else replace(right, findings=(one,))
    return right


def _agrees_in_layouts(here: SingleOperation, there: SingleOperation, wanted: Sequence[Tensor | None]) -> bool:
    """Return whether the device gives the same values for arguments and output gradients in other layouts.

    A layout in which the operation raises on the CPU, or has other values there, is skipped.
    """
    given = (*there.leaves, *there.grads)
    orders = (arranged_in(layout, given) for layout in _ORDERS)
    found = [arranged_in(_GAPS, given), next(filter(None, orders), None)]
    return all(_agrees_in(arranged, here, there, wanted) for arranged in found if arranged is not None)


def _agrees_in(
    arranged: Arranged, here: SingleOperation, there: SingleOperation, wanted: Sequence[Tensor | None]
) -> bool:
    try:
        on_the_cpu = there.run(arranged, arranged, NO_LOG)
        return not _agree(on_the_cpu, wanted) or _agree(here.run(arranged, arranged, NO_LOG), wanted)
    except OperationError:
        return True


def _agree(found: Sequence[Tensor | None], wanted: Sequence[Tensor | None]) -> bool:
    """Return whether the same tensors are there, and differ by rounding at most."""
    return len(found) == len(wanted) and all(map(_agrees, found, wanted))


def _agrees(found: Tensor | None, wanted: Tensor | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return agrees(on_cpu(found), on_cpu(wanted))
