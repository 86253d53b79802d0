"""The device ``xla`` of torch_xla: TPUs and other accelerators, and a CPU client (``PJRT_DEVICE=CPU``).

Operations are recorded, compiled and run when a value is read. Importing this module imports torch_xla, which makes
the device known to torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

import torch

known_limits = {
    "processes_per_index": 1,
    "float64": "may be computed in float32, as XLA_USE_F32 and the chip say",
    "storage": "a tensor has no address, so gradients that share memory are not found",
    "expanded gradients": "an in-place addition to a gradient of stride 0, such as a sum's, adds once per element",
    "peak_memory": "nothing counts its memory",
}


class XlaUnavailableError(ImportError):
    """torch_xla is not installed in this environment."""


def _imported(name: str) -> Any:
    if importlib.util.find_spec("torch_xla") is None:
        msg = "torch_xla is not installed; install it with: pip install -r constraints-xla.txt"
        raise XlaUnavailableError(msg)
    return importlib.import_module(name)


torch_xla: Any = _imported("torch_xla")
_model: Any = _imported("torch_xla.core.xla_model")
if os.environ.get("PJRT_DEVICE") == "CPU":  # torch_xla sets it where it finds nothing better
    known_limits["simulated"] = "torch_xla's CPU client computes"

if not hasattr(torch, "xla"):
    torch.xla = torch_xla  # type: ignore[attr-defined] # torch.utils.checkpoint looks the device's module up there


class _Once(logging.Filter):
    """A filter that drops repeated messages of torch_xla, such as its warning at each ``nn.GRU``."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a message of torch_xla that was logged before."""
        message, own = record.getMessage(), "torch_xla" in Path(record.pathname).parts
        if not own:
            return True
        again = message in self._seen
        self._seen.add(message)
        return not again


logging.getLogger().addFilter(_Once())


def device_count() -> int:
    """Return the number of indices of this process."""
    return int(torch_xla.device_count())


def synchronize(device: torch.device) -> None:
    """Run the recorded operations, and wait for them."""
    del device
    torch_xla.sync()
    _model.wait_device_ops()


def seed(seed: int) -> None:
    """Seed the generator of the device."""
    torch_xla.manual_seed(seed)
