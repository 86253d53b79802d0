"""Tries the layouts of one operation: its kernels alone, and as autograd calls them for inputs in other layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from gradconform.devices.device import device_of
from gradconform.devices.probe import OPERATIONS
from gradconform.devices.tensor_facts import facts_withheld
from gradconform.drive.driver import NO_LOG
from gradconform.drive.oracle import replaced
from gradconform.drive.single_operation import Arranged, OperationError, SingleOperation
from gradconform.trial.materials import Materials

from .layouts import LAYOUTS, LayoutsTried, in_layout
from .oracle_result import LARGEST, TOO_LARGE, OracleResult, by_reason

_CPU = torch.device("cpu")


def layouts_of(materials: Materials) -> OracleResult:
    """Return the comparison of a sample's kernels in every layout with themselves on contiguous arguments.

    The sample is the first stage of the trial of ``materials``. It runs forward and backward. A fault in a call that
    autograd itself makes has priority. Raises :class:`~gradconform.drive.single_operation.OperationError` if the drawn
    operation raises.
    """
    device = device_of(materials.device)
    if OPERATIONS in facts_withheld(device.type) or "offset" in facts_withheld(device.type):
        return OracleResult(
            not_tried={f"{device.type} does not show operations or strides": [materials.trial.stages[0].name]}
        )
    alone, known = SingleOperation(materials), set[str]()
    first = SingleOperation(replaced(materials, _CPU)) if device.ends_where_a_backward_raises else None
    logs = [LayoutsTried(device, each=True, known=set())]
    if alone.size > LARGEST:
        return OracleResult(not_tried={TOO_LARGE: [materials.trial.stages[0].name]})
    alone.run(copied, copied, logs[0])
    refused = False
    for arranged, of_grads in _ways(alone.leaves, alone.grads):
        logs.append(LayoutsTried(device, each=False, known=known))
        refused |= not _accepted(arranged, of_grads, logs[-1], alone, first)
    return _together(logs, [materials.trial.stages[0].name] if refused else [])


def _accepted(
    arranged: Arranged, of_grads: Arranged, log: LayoutsTried, alone: SingleOperation, first: SingleOperation | None
) -> bool:
    """Run a sample in a layout, and ``first`` on the CPU if an error on the device would end the process.

    Return whether it did not raise.
    """
    try:
        if first is not None:
            first.run(arranged, of_grads, NO_LOG)
        alone.run(arranged, of_grads, log)
    except OperationError:
        return False
    return True


def _together(logs: Sequence[LayoutsTried], refused: Sequence[str]) -> OracleResult:
    """Return the combined result of several runs of a sample; raise an error of the kit's own code in any of them."""
    for failed in (log.failed for log in logs):
        if failed is not None:
            raise failed
    faults = sorted((log.fault for log in logs if log.fault is not None), key=lambda fault: not fault.by_autograd)
    raising = {"the operation raises for a layout": refused} if refused else {}
    return OracleResult(
        finding=faults[0].finding if faults else None,
        compared=sum(log.calls for log in logs),
        tried=frozenset[str]().union(*(log.tried for log in logs)),
        not_tried=by_reason([raising, *(log.not_tried for log in logs)]),
    )


def _ways(leaves: Sequence[Tensor], grads: Sequence[Tensor]) -> Iterator[tuple[Arranged, Arranged]]:
    """Yield the functions that lay out the leaves and the output gradients, one pair for each run.

    First all have one layout; then a single leaf has gaps, because a kernel may read only another leaf's layout. A
    layout that no tensor can have is left out: its run would equal the last one, where all are as they were drawn.
    """
    for layout in LAYOUTS:
        every = arranged_in(layout, (*leaves, *grads))
        if every is not None:
            yield every, every
    if any(_fits("expanded", one) for one in grads):
        yield copied, partial(_in_layout, "expanded", None)
    for at, leaf in enumerate(leaves):
        if len(leaves) > 1 and _fits("strided", leaf):
            yield partial(_in_layout, "strided", at), copied
    yield copied, copied


def arranged_in(layout: str, tensors: Sequence[Tensor]) -> Arranged | None:
    """Return the function that lays out each tensor that can have a layout; None if none of ``tensors`` can."""
    return partial(_in_layout, layout, None) if any(_fits(layout, one) for one in tensors) else None


def copied(_: int, tensor: Tensor) -> Tensor:
    """Return a copy of a tensor in its own layout."""
    return tensor.clone()


def _in_layout(layout: str, only: int | None, at: int, tensor: Tensor) -> Tensor:
    """Return tensor ``at`` in a layout; a copy if another is selected, or it has too few dimensions or elements."""
    arranged = in_layout(tensor, layout) if only in {None, at} and _fits(layout, tensor) else None
    return tensor.clone() if arranged is None else arranged


def _fits(layout: str, tensor: Tensor) -> bool:
    """Return whether a tensor can have a layout other than that of its copy; one element has one layout."""
    dimensions = tensor.dim() > 0 if layout == "expanded" else tensor.dim() in LAYOUTS[layout]
    return dimensions and tensor.layout is torch.strided and tensor.numel() > 1
