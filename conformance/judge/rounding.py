"""Whether a difference is rounding: it is smaller in a dtype of smaller eps, in proportion."""

from __future__ import annotations

import torch

#: By how much less than eps a difference may shrink from one dtype to another and still be rounding.
_SHRINKS = 2.0**10


def companion(dtype: torch.dtype) -> torch.dtype:
    """Return the real dtype in which a difference in ``dtype`` is looked at again: float64, and float32 for float64."""
    return torch.float32 if dtype is torch.float64 else torch.float64


def shrinks(error: float, again: float, dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return whether an ``error`` in ``dtype`` and one ``again`` in ``other`` are as far apart as rounding is there."""
    eps, other_eps = torch.finfo(dtype).eps, torch.finfo(other).eps
    large, small = (error, again) if eps > other_eps else (again, error)
    return small <= _SHRINKS * min(eps, other_eps) / max(eps, other_eps) * large
