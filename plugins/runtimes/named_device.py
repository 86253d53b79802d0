"""What runtimes need that ask for tensors on ``cuda`` by that name: they get them where the stages are."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class NamedDevice(TorchFunctionMode):
    """Gives what is asked of ``cuda`` on a device."""

    def __init__(self, device: torch.device) -> None:
        """Take the device that the name stands for."""
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, on the device."""
        kwargs = kwargs or {}
        if kwargs.get("device") == "cuda":
            kwargs = {**kwargs, "device": self.device}
        return func(*args, **kwargs)
