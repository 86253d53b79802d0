"""Distributed tensors. Importing their module takes most of a second, and no such tensor exists before."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_distributed(value: Any) -> TypeIs[DTensor]:
    """Return whether a value is a distributed tensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)
