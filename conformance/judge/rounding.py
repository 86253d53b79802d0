"""Decides whether a difference is rounding: it shrinks in proportion to eps in a dtype of smaller eps."""

from __future__ import annotations

import torch

#: A difference may shrink by this factor less than eps from one dtype to another and still be rounding.
_SHRINKS = 2.0**10


def companion(dtype: torch.dtype) -> torch.dtype:
    """Return the real dtype in which a difference in ``dtype`` is tested again: float64, and float32 for float64."""
    return torch.float32 if dtype is torch.float64 else torch.float64


def shrinks(error: float, again: float, dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return whether an ``error`` in ``dtype`` and one ``again`` in ``other`` have the ratio of rounding there."""
    eps, other_eps = torch.finfo(dtype).eps, torch.finfo(other).eps
    large, small = (error, again) if eps > other_eps else (again, error)
    return small <= _SHRINKS * min(eps, other_eps) / max(eps, other_eps) * large
