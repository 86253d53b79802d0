"""What became of NaN and inf."""

from __future__ import annotations

import torch
from torch import Tensor

from gradconform.diagnosis.question import largest, rounding


def cause_of(got: Tensor, expected: Tensor, differs: Tensor) -> str | None:
    """Return what became of NaN and inf where they differ, or None where it is not one thing."""
    one, other = got[differs], expected[differs]
    if bool((torch.isfinite(other) & torch.isnan(one)).all()):
        return "NaN where plain autograd has numbers: it spread, or came from undefined arithmetic"
    if not _alike(got[~differs], expected[~differs]):
        return None  # a number may stand for NaN because what brings the NaN is missing
    if bool((torch.isnan(other) & torch.isfinite(one)).all()):
        return "NaN replaced by a number"
    if bool((torch.isinf(other) & torch.isfinite(one)).all()):
        return "inf replaced by a finite number: clipped"
    return None


def _alike(got: Tensor, expected: Tensor) -> bool:
    finite = torch.isfinite(expected)
    one, other = got[finite], expected[finite]
    return largest(one - other) <= 2.0 * rounding(torch.finfo(got.dtype).eps, largest(other))
