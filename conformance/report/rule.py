"""The numeric rule in words, for explanations and for docs/contract.md."""

from __future__ import annotations

import torch

from gradconform.devices import DTYPES
from gradconform.tolerance import floor_factor

FORMULA = "max|g - g64| <= 2 * max|g_autograd - g64| + c * eps(dtype) * scale"


def factors() -> list[tuple[str, float, float]]:
    """Return name, c and eps of every dtype that a run can be asked for."""
    return [(name, floor_factor(dtype), torch.finfo(dtype).eps) for name, dtype in DTYPES.items()]
