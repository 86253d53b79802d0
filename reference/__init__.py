"""Implementations known to be right: plain autograd, and a split stage backward that meets the contract.

The import loads no torch: ``in_torch`` and ``install`` are loaded at their first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .install_in_torch import in_torch, install

__all__ = ["in_torch", "install"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f"{__name__}.install_in_torch"), name)
