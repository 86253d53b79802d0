"""A device plugin with a planted bug: it replaces ``gelu_backward`` of the backend in ``PLANTED_IN``."""

from __future__ import annotations

import importlib
import os

import torch
from torch import Tensor

importlib.import_module(os.environ["PLANTED_IN"])
_RIGHT = torch._decomp.get_decompositions([torch.ops.aten.gelu_backward])[torch.ops.aten.gelu_backward.default]
_LIBRARY = torch.library.Library("aten", "IMPL")


def _wrong(grad: Tensor, values: Tensor, *, approximate: str = "none") -> Tensor:
    """Return a gradient that is 25 % too large."""
    found: Tensor = _RIGHT(grad, values, approximate=approximate)
    return found * 1.25


_LIBRARY.impl("gelu_backward", _wrong, "PrivateUse1", allow_override=True)
