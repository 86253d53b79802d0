"""Unwritten memory: torch fills it with NaN while its algorithms are deterministic."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from .deterministic import use_deterministic_algorithms


@contextlib.contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """Make memory that a kernel leaves unwritten hold NaN in this context, in place of old contents."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for operations without a deterministic form
        use_deterministic_algorithms(mode=True, warn_only=True)
        try:
            yield
        finally:
            use_deterministic_algorithms(mode=before[0], warn_only=before[1])
