"""Checks that the gradients of a batch are those of its rows, if an operation's forward treats rows independently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.oracle import replaced
from gradconform.drive.reference64 import widen
from gradconform.drive.single_operation import OperationError, SingleOperation
from gradconform.drive.watches import on_cpu
from gradconform.fixtures.operations.stage import OperationStage
from gradconform.tolerance import FAR, Judgement, Partials, describe, judge, sizes
from gradconform.trial.materials import Materials

from .finding import Finding
from .oracle_result import LARGEST, TOO_LARGE, OracleResult
from .rounding import companion, shrinks

#: A batch is divided into at most this many micro-batches.
_PARTS = 3

#: A smaller excess over rounding is not a finding on a device without a wider dtype.
_LITTLE = 16.0


@dataclass(frozen=True, slots=True)
class _Gradients:
    """The gradient of each leaf that needs one, by its name: of the whole batch, and of its rows combined.

    ``size`` has the largest partial sums of the micro-batches.
    """

    name: str
    whole: Tensor
    parts: Tensor
    size: Partials


def additivity_of(materials: Materials) -> OracleResult:
    """Return the comparison of a sample's batch gradients with those of its rows in several micro-batches.

    The sample is the first stage of the trial of ``materials``. Arguments that have rows are divided. Each micro-batch
    is filled up with its own rows, whose output gradients are set to 0. Gradients of undivided arguments add up. Raises
    :class:`~gradconform.drive.single_operation.OperationError` as the operation does.
    """
    alone, name = SingleOperation(materials), materials.trial.stages[0].name
    if alone.size > LARGEST:
        return OracleResult(not_tried={TOO_LARGE: [name]})
    stage = alone.stage()
    leaves = alone.leaves_of(stage, 0)
    _whole(alone, stage, leaves)
    divided = _divided(SingleOperation(replaced(materials, torch.device("cpu"))))
    if divided is None:
        return OracleResult(not_tried={"its forward has no rows, or does not treat them independently": [name]})
    try:
        found = list(_gradients(alone, stage, leaves, divided))
    except OperationError:
        return OracleResult(not_tried={"a micro-batch raises": [name]})
    for one in found:
        judged = _judged(one)
        if judged is not None and not _rounds(alone, one, judged, divided):
            return OracleResult(
                finding=_finding(stage.entry, one, judged), compared=len(found), tried=frozenset([name])
            )
    return OracleResult(compared=len(found), tried=frozenset([name]))


def _whole(alone: SingleOperation, stage: OperationStage, leaves: Sequence[Tensor]) -> list[Tensor]:
    return [one for one in alone.outputs_for(stage, leaves) if one.requires_grad]


def _divided(alone: SingleOperation) -> tuple[int, ...] | None:
    """Return the numbers of the leaves that have rows, if each output row depends on one row of each leaf.

    The outputs of the batch must be those of its micro-batches. This is tested by values in float64 on the CPU, where
    no rounding hides the effect of other rows. None if no choice of leaves passes.
    """
    try:
        stage, leaves = alone.in_dtype(torch.float64)
        outputs = _whole(alone, stage, leaves)
    except (OperationError, RuntimeError, TypeError):
        return None
    rows = {one.shape[0] if one.dim() else 0 for one in outputs}
    if len(rows) != 1 or min(rows) < 2:  # noqa: PLR2004 (one row is not a batch)
        return None
    for choice in _choices(leaves[: alone.arguments], *rows):
        if _independent(alone, stage, leaves, outputs, choice):
            return choice
    return None


def _choices(args: Sequence[Tensor], count: int) -> Iterator[tuple[int, ...]]:
    """Yield the arguments that may have rows: all of ``count`` rows, those like the first, or the first alone."""
    able = [at for at, one in enumerate(args) if one.layout is torch.strided and one.dim() and len(one) == count]
    if able:
        alike = tuple(at for at in able if args[at].dim() == args[able[0]].dim())
        yield from dict.fromkeys([tuple(able), alike, (able[0],)])


def _independent(
    alone: SingleOperation,
    stage: OperationStage,
    leaves: Sequence[Tensor],
    outputs: Sequence[Tensor],
    divided: Sequence[int],
) -> bool:
    parts: list[list[Tensor]] = []
    try:
        for rows in _slices(len(outputs[0])):
            found = _whole(alone, stage, _filled(leaves, divided, rows))
            parts.append([one[rows] for one in found])
    except (OperationError, IndexError):
        return False
    if any(len(part) != len(outputs) for part in parts):
        return False
    return all(_joined_alike([part[at] for part in parts], output) for at, output in enumerate(outputs))


def _joined_alike(parts: Sequence[Tensor], output: Tensor) -> bool:
    if any(part.shape[1:] != output.shape[1:] or part.dtype is not output.dtype for part in parts):
        return False
    joined = torch.cat(list(parts))
    return joined.shape == output.shape and _alike(on_cpu(joined), on_cpu(output))


def _alike(one: Tensor, other: Tensor) -> bool:
    if not torch.equal(torch.isfinite(one.abs()), torch.isfinite(other.abs())):
        return False
    return judge(one, other, widen(other), Partials()).passed


def _slices(count: int) -> Iterator[slice]:
    """Yield the rows of each micro-batch."""
    bounds = [len(part) for part in torch.arange(count).tensor_split(min(count, _PARTS))]
    start = 0
    for size in bounds:
        yield slice(start, start + size)
        start += size


def _filled(leaves: Sequence[Tensor], divided: Sequence[int], rows: slice) -> list[Tensor]:
    """Return the leaves of a micro-batch: divided leaves hold only ``rows``, copied to fill all other rows.

    The shapes stay the same, because kernels that receive a size do not check it, and would read past a smaller tensor.
    """
    found = list(leaves)
    for at in divided:
        leaf = leaves[at]
        own = range(len(leaf))[rows]
        index = [row if row in own else own[row % len(own)] for row in range(len(leaf))]
        found[at] = leaf.detach()[torch.tensor(index, device=leaf.device)].requires_grad_(leaf.requires_grad)
    return found


def _only(grad: Tensor, rows: slice) -> Tensor:
    """Return an output gradient that is 0 in all other rows."""
    found = torch.zeros_like(grad)
    found[rows] = grad[rows]
    return found


def _gradients(
    alone: SingleOperation, stage: OperationStage, leaves: Sequence[Tensor], divided: Sequence[int]
) -> Iterator[_Gradients]:
    """Yield the gradients of the batch and of its micro-batches, for each leaf that needs one and gets one."""
    outputs = _whole(alone, stage, leaves)
    grads = alone.output_grads(outputs)
    whole = alone.grads_of(outputs, leaves, grads)
    by_part: list[list[Tensor | None]] = []
    for rows in _slices(len(outputs[0])):
        own = _filled(leaves, divided, rows)
        by_part.append(alone.grads_of(_whole(alone, stage, own), own, [_only(grad, rows) for grad in grads]))
    needed = [at for at, leaf in enumerate(leaves) if leaf.requires_grad]
    for number, (at, grad) in enumerate(zip(needed, whole, strict=True)):
        parts = [one for one in (part[number] for part in by_part) if one is not None]
        if grad is None or len(parts) != len(by_part):
            continue
        parts = [one.to_dense() for one in parts]
        if at in divided:
            parts = [one[rows] for one, rows in zip(parts, _slices(len(outputs[0])), strict=True)]
        joined = torch.cat(parts) if at in divided else torch.stack(parts).sum(0)
        name = f"argument {at}" if at < alone.arguments else f"parameter {at - alone.arguments}"
        yield _Gradients(name, on_cpu(grad.to_dense()), on_cpu(joined), sizes(map(on_cpu, parts)))


def _judged(one: _Gradients) -> Judgement | None:
    """Return the judgement of the gradients' difference, None if it is within the rule or not finite in both."""
    judged = judge(one.parts, one.whole, widen(one.whole), one.size, factor=FAR)
    finite = torch.equal(torch.isfinite(one.parts.abs()), torch.isfinite(one.whole.abs()))
    return None if judged.passed and finite else judged


def _rounds(alone: SingleOperation, one: _Gradients, judged: Judgement, divided: Sequence[int]) -> bool:
    """Return whether a difference is rounding: in another dtype it changes as eps does."""
    dtype = one.whole.dtype.to_real() if one.whole.is_complex() else one.whole.dtype
    other = companion(dtype)
    try:
        stage, leaves = alone.in_dtype(other)
        again = {wide.name: wide for wide in _gradients(alone, stage, leaves, divided)}
    except (OperationError, RuntimeError, TypeError):  # the device, or the operation, has no such dtype
        return judged.error_ratio <= _LITTLE
    if one.name not in again:
        return False
    wide = again[one.name]
    if other is torch.float64 and _judged(wide) is None:  # 16-bit sums that overflow differ with their order
        return True
    difference = (wide.parts - wide.whole).abs()
    return shrinks(judged.error, float(difference.max()) if difference.numel() else 0.0, dtype, other)


def _finding(entry: str, one: _Gradients, judged: Judgement) -> Finding:
    got, wanted = one.parts[judged.worst], one.whole[judged.worst]
    text = (
        f"the gradient of {one.name} at {list(judged.worst)} is {describe(wanted, got)} from the batch and "
        f"{describe(got, wanted)} from its rows in micro-batches; it differs by {judged.error:.3g}"
    )
    cause = Cause(Mistake.ROWS_MIXED, names=(entry,))
    return Finding("mismatch", entry, "", text, judged.error, judged.bound, judged.error_ratio, cause)
