"""Whether a tensor has a storage: torch knows this without using the device, under a private name."""

from __future__ import annotations

import torch
from torch import Tensor

from .names import Name

HAS_STORAGE = Name("torch:_C", ("_has_storage",), "says whether a tensor has a storage")


def has_storage(tensor: Tensor) -> bool:
    """Return whether ``tensor`` has a storage; True if this torch cannot say."""
    return bool(torch._C._has_storage(tensor)) if HAS_STORAGE.there() else True  # noqa: SLF001 (named above)
