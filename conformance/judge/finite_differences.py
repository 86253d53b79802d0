"""Checks that the gradient of an operation is the slope of its forward: ``torch.autograd.gradcheck`` in float64."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.single_operation import OperationError, SingleOperation
from gradconform.fixtures.operations.entries import Entry, entries
from gradconform.fixtures.operations.stage import OperationStage
from gradconform.trial.materials import Materials

from .finding import Finding
from .kernel_call import REFUSALS
from .oracle_result import LARGEST, TOO_LARGE, OracleResult

#: How many draws of a sample must fail: one draw may be at a kink, which has no slope.
_DRAWS = 3
#: The step of gradcheck, its absolute bound, and the error that a difference may have, in roundings of an output.
_STEP, _ATOL, _ROUNDINGS = 1e-6, 1e-5, 8.0
_WIDE = {torch.float64, torch.complex128}
_MISMATCH = re.compile(r"^(Jacobian mismatch for output \d+ with respect to input (\d+)),", re.DOTALL)
_NUMBERS = re.compile(r"numerical:\s*(.+?)\s*analytical:\s*(.+?)(?:\n\n|$)", re.DOTALL)


def slopes_of(materials: Materials) -> OracleResult:
    """Return the comparison of a sample's gradients with finite differences of its forward.

    The sample is the first stage of the trial of ``materials``, which is in float64. Samples that torch's own tests
    mark as failing are skipped. Raises :class:`~gradconform.drive.single_operation.OperationError` if the operation
    raises.
    """
    alone, name = SingleOperation(materials), materials.trial.stages[0].name
    entry = entries()[alone.stage().entry]
    why = TOO_LARGE if alone.size > LARGEST else _why_not(entry, alone, materials.device.type)
    if why is not None:
        return OracleResult(not_tried={why: [name]})
    wrong: GradcheckError | None = None
    for draw in range(_DRAWS):
        try:
            wrong = _wrong(alone, entry, draw)
        except REFUSALS as error:  # in a backward that gradcheck runs
            raise OperationError from error
        if wrong is None:
            return OracleResult(compared=1, tried=frozenset([name]))
    if "not reentrant" in str(wrong):
        return OracleResult(not_tried={"two backwards of one graph differ": [name]})
    return OracleResult(finding=_finding(entry, str(wrong)), compared=1, tried=frozenset([name]))


def _why_not(entry: Entry, alone: SingleOperation, device_type: str) -> str | None:
    """Return why a sample is not tried, None if it is tried."""
    marked = entry.marked_failing(device_type, torch.float64)
    if marked is not None:
        return f"marked as failing by torch's own test: {marked}"
    stage = alone.stage()
    if not stage.takes_strided_tensors:
        return "sparse, where a zero that is changed is another entry"
    needed = [one for one in alone.leaves_of(stage, 0) if one.requires_grad]
    if not all(one.dtype in _WIDE for one in needed):
        return "an input needs a gradient and is not float64"
    if not any(one.numel() for one in needed):
        return "no input that needs a gradient has elements"
    outputs = alone.outputs_for(stage, alone.leaves_of(stage, 0))
    return None if all(one.dtype in _WIDE for one in outputs if one.requires_grad) else "an output is not float64"


def _wrong(alone: SingleOperation, entry: Entry, draw: int) -> GradcheckError | None:
    """Return the error that gradcheck raises for one draw, or None; raise the operation's own error."""
    stage = alone.stage()
    leaves = alone.leaves_of(stage, draw)
    needed = tuple(one for one in leaves if one.requires_grad)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an input that shares memory with another one
        try:
            torch.autograd.gradcheck(
                partial(_outputs, alone, stage, leaves),
                needed,
                atol=_room(alone.outputs_for(stage, leaves)),
                eps=_STEP,
                nondet_tol=entry.nondet_tol,
                fast_mode=entry.fast_mode,
                check_undefined_grad=False,
            )
        except GradcheckError as error:
            return error
    return None


def _room(outputs: Sequence[Tensor]) -> float:
    """Return the largest error of a finite difference: gradcheck's own bound, or the rounding of large outputs."""
    sizes = [float(torch.nan_to_num(one.detach().abs(), posinf=0.0).max()) for one in outputs if one.numel()]
    return max(_ATOL, _ROUNDINGS * torch.finfo(torch.float64).eps * max(sizes, default=0.0) / _STEP)


def _outputs(alone: SingleOperation, stage: OperationStage, leaves: Sequence[Tensor], *changed: Tensor) -> Any:
    """Return the outputs that need a gradient; gradcheck changes the leaves in place, and sometimes passes copies."""
    left = iter(changed)
    given = [next(left) if one.requires_grad else one for one in leaves]
    return tuple(one for one in alone.outputs_for(stage, given) if one.requires_grad)


def _finding(entry: Entry, message: str) -> Finding:
    head, numbers = _MISMATCH.match(message), _NUMBERS.search(message)
    text = next(iter(message.splitlines()), "gradcheck fails").rstrip(",")
    if head is not None and numbers is not None:
        by_slopes, by_backward = (" ".join(one.split()) for one in numbers.groups())
        text = f"{head[1]}: finite differences give {by_slopes}, the backward {by_backward}"
    cause = Cause(Mistake.SLOPE_WRONG, names=(entry.name,))
    return Finding("mismatch", entry.name, "", text, error_ratio=float("inf"), cause=cause)
