"""Redirects ``cuda`` to the stages' device, for runtimes that create tensors on ``cuda`` by name."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class NamedDevice(TorchFunctionMode):
    """A mode that creates tensors on a device instead of ``cuda``."""

    def __init__(self, device: torch.device) -> None:
        """Store the device that replaces ``cuda``."""
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, on the device."""
        kwargs = kwargs or {}
        if kwargs.get("device") == "cuda":
            kwargs = {**kwargs, "device": self.device}
        return func(*args, **kwargs)
