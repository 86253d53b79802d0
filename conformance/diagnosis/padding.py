"""Finds why a micro-batch has only zero gradients: it may be mistaken for padding that fills up a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step

from .cause import Cause, Mistake
from .common_cause import given_by
from .rerun import rerun_of

#: The largest sum, relative to the sum of absolute terms, that counts as zero within rounding.
_NEAR = 2.0**-4


def padding(evidence: Evidence, step: Step) -> Cause | None:
    """Return what distinguishes a micro-batch whose gradients are all zero; None if some are not zero."""
    if step.action.kind not in {"B", "I", "W"} or step.action.misuse or evidence.trial.hand_grads:
        return None
    given = given_by(evidence, step)
    if any(one.got is not None and bool(one.got.any()) for one in given):
        return None
    again = rerun_of(evidence, step)
    tensors = (one.detach() for one in again.args if isinstance(one, Tensor))
    arguments = [one for one in tensors if one.is_floating_point() and one.numel() > 1]
    zero = [one for one in arguments if not bool(one.any())]
    marks = {
        Mistake.ARGUMENT_ZERO: bool(zero),
        Mistake.ARGUMENT_CANCELS: not zero and any(map(_cancels, arguments)),
        Mistake.OUTPUT_OF_BOOLS: any(
            isinstance(one, Tensor) and one.dtype is torch.bool for one in again.outputs.values()
        ),
    }
    causes = tuple(Cause(kind) for kind, marked in marks.items() if marked)
    return Cause(Mistake.EITHER, causes=causes) if len(causes) > 1 else next(iter(causes), None)


def _cancels(argument: Tensor) -> bool:
    return float(argument.sum().abs()) <= _NEAR * float(argument.abs().max())
